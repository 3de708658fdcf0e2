"""The live clients of this process, shared by all stores of one access and by their unpickled copies."""

import os
import threading
from collections import OrderedDict
from typing import Any

from torch_dataloader_utils._store.process_local import ProcessLocal

# A process pool unpickles its store for every file that it scans, and must not connect again each time.
_MOST = 16

Key = tuple[str, ...]


class ClientTable:
    """Clients by store; drops the least recently used, which close once no thread uses them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clients: OrderedDict[Key, ProcessLocal[Any]] = OrderedDict()

    def of(self, key: Key) -> ProcessLocal[Any]:
        """The slot of the client for stores with this key."""
        with self._lock:
            found = self._clients.pop(key, None)
            self._clients[key] = client = ProcessLocal() if found is None else found
            if len(self._clients) > _MOST:
                self._clients.popitem(last=False)
        return client

    def unlock(self) -> None:
        """Replaces the lock in a forked child, where the thread that held it may not exist."""
        self._lock = threading.Lock()


clients = ClientTable()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=clients.unlock)
