"""Files of the Hugging Face Hub: the file that an `hf://` URL names at one commit, and reads of ranges.

A branch moves; a commit does not. Listings therefore name files by the commit of their revision, and so do inventories:
a job continues with the same bytes while somebody pushes to the data set.
Source: huggingface_hub 1.0 and later (https://huggingface.co/docs/huggingface_hub), the REST API of the Hub.
"""

import re
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any
from urllib.parse import quote, unquote

from torch_dataloader_utils._store.conditional_reads import PieceStream, RangeReply
from torch_dataloader_utils._store.retry import RetryPolicy

CLIENT = "huggingface_hub"
_TYPES = {"datasets": "dataset", "spaces": "space", "models": "model"}
_COMMIT = re.compile(r"[0-9a-f]{40}")
# A name of a reference may have a slash: "refs/convert/parquet", "refs/pr/10".
_REFERENCE = re.compile(r"refs/(?:convert|pr)/[^/]+")
_SESSION = "torch_dataloader_utils_session"


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFile:
    """File or directory of a repository. revision: Branch, tag or commit, "" for the main branch."""

    folder: str
    repository: str
    revision: str
    path: str

    @classmethod
    def of(cls, key: str) -> "HubFile | None":
        """Return the file of a key; None for a key outside repositories, such as a bucket, which has no commits."""
        first, _, rest = key.partition("/")
        folder, rest = (first, rest) if first in _TYPES else ("", key)
        owner, _, rest = rest.partition("/")
        name, _, path = rest.partition("/")
        name, at, revision = name.partition("@")
        if first == "buckets" or not name:
            return None
        reference = _REFERENCE.match(f"{revision}/{path}") if at else None
        if reference:
            revision, path = reference[0], f"{revision}/{path}"[reference.end() + 1 :]
        return cls(folder=folder, repository=f"{owner}/{name}", revision=unquote(revision), path=path)

    @property
    def type(self) -> str:
        """Type of the repository in the Hub's API."""
        return _TYPES.get(self.folder, "model")

    @property
    def is_at_commit(self) -> bool:
        """Whether the name means the same bytes forever."""
        return bool(_COMMIT.fullmatch(self.revision))

    @property
    def key(self) -> str:
        """The client's name for the file."""
        at = f"@{quote(self.revision, safe='')}" if self.revision else ""
        return "/".join(part for part in (self.folder, f"{self.repository}{at}", self.path) if part)


def key_at_commit(filesystem: Any, key: str) -> str:
    """Return the key of the same file, directory or pattern at the present commit of its revision: one request.

    Raises:
        Any error of the Hub's client, such as a missing repository or revision.
    """
    file = HubFile.of(key)
    if file is None or file.is_at_commit:
        return key
    api = import_module(CLIENT).HfApi(endpoint=filesystem.endpoint, token=filesystem.token)
    commit = api.repo_info(file.repository, repo_type=file.type, revision=file.revision or None).sha
    return replace(file, revision=commit).key


async def fetch_from_hub(filesystem: Any, key: str, reply: RangeReply, policy: RetryPolicy) -> None:
    """Get the missing bytes of `reply`. The identity holds where the key names a commit.

    Raises:
        WrongReplyError: another range. StalledError: the reply stopped. FileNotFoundError, and errors of httpx.
    """
    hub, file = import_module(CLIENT), HubFile.of(key)
    first, last = reply.missing
    headers = {
        **hub.utils.build_hf_headers(token=filesystem.token),
        "Range": f"bytes={first}-{last}",
        "Accept-Encoding": "identity",
    }
    session = filesystem.__dict__.get(_SESSION)
    if session is None:  # runs on the loop's thread, so no other thread makes a session now
        session = filesystem.__dict__[_SESSION] = hub.get_async_session()
    request = session.build_request("GET", _web_address(hub, filesystem.endpoint, key, file), headers=headers)
    async with reply.begun(policy):
        answer = await session.send(request, stream=True, follow_redirects=True)
    try:
        if answer.status_code == 404:
            raise FileNotFoundError(key)
        answer.raise_for_status()
        length = answer.headers.get("Content-Length", "")
        reply.check_range(answer.headers.get("Content-Range"), int(length) if length.isdigit() else None)
        reply.check_identity(reply.identity if file and file.is_at_commit else None)
        await reply.receive(PieceStream(answer.aiter_raw()), policy)
    finally:
        await answer.aclose()


def _web_address(hub: Any, endpoint: str, key: str, file: HubFile | None) -> str:
    if file is None:
        owner, name, path = key.removeprefix("buckets/").split("/", 2)
        return f"{endpoint}/buckets/{owner}/{name}/resolve/{quote(path)}"
    address: str = hub.hf_hub_url(
        file.repository, file.path, repo_type=file.type, revision=file.revision or None, endpoint=endpoint
    )
    return address
