"""What the options of a policy mean to the server."""

from __future__ import annotations

from typing import Any

import pytest

from sandgate.deepagents._options import policy


@pytest.mark.parametrize(
    ("options", "allowed", "denied"),
    [
        ({"allow_prefixes": ["/a/b/x/", "/a/b"]}, ("/x", "/"), ()),
        # What holds the root allows all of it, or denies all of it.
        ({"allow_prefixes": ["/a"]}, ("/",), ()),
        ({"deny_prefixes": ["/a"]}, (), ("/a", "/")),
        ({"deny_prefixes": ["/"]}, (), ("/", "/")),
        ({"deny_prefixes": ["/a/b/x", "/a/bx"]}, (), ("/a/b/x", "/a/bx", "/x")),
    ],
)
def test_s1_20_prefixes_below_a_virtual_root(
    options: dict[str, Any], allowed: tuple[str, ...], denied: tuple[str, ...]
) -> None:
    made = policy(root_dir="/a/b", virtual_mode=True, **options)
    assert made is not None
    assert (made.write_allow_prefixes, made.write_deny_prefixes) == (allowed, denied)


@pytest.mark.parametrize("prefix", ["", "/c", "/a/bx"])
def test_s1_20_a_prefix_outside_of_the_root_is_refused(prefix: str) -> None:
    with pytest.raises(ValueError, match="is not beneath root_dir, /a/b"):
        policy(root_dir="/a/b", virtual_mode=True, allow_prefixes=[prefix])
