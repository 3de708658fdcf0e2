"""Files of the Hugging Face Hub: what an `hf://` URL names at one commit, and reads of ranges.

A branch moves; a commit does not. Listings therefore name files by the commit that their revision had, and so do
inventories: a job goes on with the same bytes while the data set is pushed to.
Source: huggingface_hub 1.0 and later (https://huggingface.co/docs/huggingface_hub), the REST API of the Hub.
"""

import re
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any
from urllib.parse import quote, unquote

from torch_dataloader_utils._store.conditional_reads import PieceStream, RangeReply, reply_within
from torch_dataloader_utils._store.retry import RetryPolicy

CLIENT = "huggingface_hub"
_TYPES = {"datasets": "dataset", "spaces": "space", "models": "model"}
_COMMIT = re.compile(r"[0-9a-f]{40}")
# A name of a reference may have a slash: "refs/convert/parquet", "refs/pr/10".
_REFERENCE = re.compile(r"refs/(?:convert|pr)/[^/]+")
_SESSION = "torch_dataloader_utils_session"


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFile:
    """A file or directory of a repository; revision: a branch, tag or commit, "" for the main branch."""

    folder: str
    repository: str
    revision: str
    path: str

    @classmethod
    def of(cls, key: str) -> "HubFile | None":
        """None for what is in no repository, such as a bucket, which has no commits."""
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
        """As the Hub's API calls it."""
        return _TYPES.get(self.folder, "model")

    @property
    def is_at_commit(self) -> bool:
        """Whether the name means the same bytes for ever."""
        return bool(_COMMIT.fullmatch(self.revision))

    @property
    def key(self) -> str:
        """What the client calls it."""
        at = f"@{quote(self.revision, safe='')}" if self.revision else ""
        return "/".join(part for part in (self.folder, f"{self.repository}{at}", self.path) if part)


def key_at_commit(filesystem: Any, key: str) -> str:
    """The key of the same file, directory or pattern at the commit that its revision names now: one request.

    Raises:
        What the Hub's client raises, such as that there is no such repository or revision.
    """
    file = HubFile.of(key)
    if file is None or file.is_at_commit:
        return key
    api = import_module(CLIENT).HfApi(endpoint=filesystem.endpoint, token=filesystem.token)
    commit = api.repo_info(file.repository, repo_type=file.type, revision=file.revision or None).sha
    return replace(file, revision=commit).key


async def fetch_from_hub(filesystem: Any, key: str, reply: RangeReply, policy: RetryPolicy) -> None:
    """Get what is missing of `reply`. The identity holds where the key names a commit.

    Raises:
        WrongReplyError: another range. StalledError: it stopped coming. FileNotFoundError, or what httpx raises.
    """
    hub, file = import_module(CLIENT), HubFile.of(key)
    first, last = reply.missing
    headers = {
        **hub.utils.build_hf_headers(token=filesystem.token),
        "Range": f"bytes={first}-{last}",
        "Accept-Encoding": "identity",
    }
    session = filesystem.__dict__.get(_SESSION)
    if session is None:  # on the loop's thread, so that no other makes one now
        session = filesystem.__dict__[_SESSION] = hub.get_async_session()
    request = session.build_request("GET", _web_address(hub, filesystem.endpoint, key, file), headers=headers)
    async with reply_within(4 * policy.progress_seconds):
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
