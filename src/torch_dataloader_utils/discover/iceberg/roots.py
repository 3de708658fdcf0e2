"""Where files may lie: a table's metadata and saved inventories can name any path that credentials reach."""

import os
import posixpath
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from torch_dataloader_utils._core.inventory import Inventory
from torch_dataloader_utils._store import redact
from torch_dataloader_utils.discover.iceberg.paths import client_scheme, is_local, split
from torch_dataloader_utils.errors import ConfigTypeError, UnsupportedFeatureError


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """places: (scheme, authority, directory) of each root; local ones have the scheme "", and "" as authority is any.

    Names are compared by whole parts, ".." and, on this machine, links resolved: /data does not hold /data-2.
    """

    places: tuple[tuple[str, str, str], ...]

    @classmethod
    def of(cls, roots: Iterable[str]) -> "Roots":
        """From the user's prefixes: "s3://bucket/warehouse", "s3://" (any bucket), "/data".

        Raises:
            ConfigTypeError: one string, whose letters are not meant.
        """
        if isinstance(roots, str):
            raise ConfigTypeError(
                f"allowed_roots is a list of prefixes; got the one string {roots!r}. Write allowed_roots=[{roots!r}]."
            )
        return cls(places=tuple(_place(root) for root in roots))

    @classmethod
    def near(cls, *locations: str) -> "Roots":
        """The whole stores that these resolved paths lie in: their buckets, or this machine."""
        return cls(places=tuple((scheme, authority, "/") for scheme, authority, _ in map(_place, locations)))

    def check_inventory(self, inventory: Inventory) -> None:
        """Raises UnsupportedFeatureError if a file of the inventory, or of its deletes, lies outside all roots."""
        deletes = {file.path for extra in inventory.files.extras if extra for file in extra.equality_deletes}
        for path in chain(inventory.files.paths, deletes):
            if "::" in path:
                raise self._outside(path, "the inventory")  # what storage a chain of clients ends at is theirs to say
            self.check(path, "the inventory")

    def check(self, path: str, named_by: str = "the table's metadata") -> None:
        """Raises UnsupportedFeatureError for a resolved path outside all roots."""
        scheme, authority, _ = split(path)
        store = ("", "") if is_local(scheme) else (client_scheme(scheme), authority)
        near = [root for root in self.places if root[0] == store[0] and root[1] in ("", store[1])]
        if any(directory == "/" for _, _, directory in near):
            return  # without a look at the path: this is asked for every file, more than once
        key = _place(path)[2] if near else ""
        if any(key == directory or key.startswith(f"{directory}/") for _, _, directory in near):
            return
        raise self._outside(path, named_by)

    def _outside(self, path: str, named_by: str) -> UnsupportedFeatureError:
        allowed = ", ".join(_shown(place) for place in self.places) or "nothing"
        return UnsupportedFeatureError(
            f"{redact(path)} is named by {named_by} but lies outside of where its files may be ({allowed}). If you "
            "trust it, pass allowed_roots= with all places of its files."
        )


def _place(path: str) -> tuple[str, str, str]:
    scheme, authority, key = split(path)
    if is_local(scheme):
        return "", "", os.path.realpath(key)
    return client_scheme(scheme), authority, posixpath.normpath(f"/{key.lstrip('/')}")


def _shown(place: tuple[str, str, str]) -> str:
    scheme, authority, directory = place
    return f"{scheme}://{authority}{directory}" if scheme else directory
