"""Catalogs for tests: one in SQLite, a small REST catalog and a small Hive metastore."""

import json
import socketserver
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any


def sqlite_catalog(root: Path) -> dict[str, str]:
    """Return the properties of a catalog that keeps its database and its tables in this directory."""
    return {"type": "sql", "uri": f"sqlite:///{root}/catalog.db", "warehouse": f"file://{root}/warehouse"}


@dataclass
class RestCatalog:
    """Serves `tables` ("ns.t": metadata file) with the credentials in `configs`, and `bodies` as they are; counts
    the requests."""

    bodies: dict[str, dict[str, Any]] = field(default_factory=dict)
    tables: dict[str, str] = field(default_factory=dict)
    configs: dict[str, dict[str, str]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)  # of all authorizations
    uri: str = ""


@contextmanager
def rest_catalog() -> Iterator[RestCatalog]:
    """A running REST catalog (Iceberg REST spec: getConfig, loadTable)."""
    catalog = RestCatalog()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            catalog.requests.append(self.path)
            catalog.tokens.add(self.headers.get("Authorization", ""))
            parts = self.path.split("?")[0].strip("/").split("/")
            if parts == ["v1", "config"]:
                self.reply(200, {"defaults": {}, "overrides": {}})
                return
            name = f"{parts[2]}.{parts[4]}" if len(parts) == 5 and parts[1] == "namespaces" else ""
            if name in catalog.bodies:
                self.reply(200, catalog.bodies[name])
                return
            if name in catalog.tables:
                metadata = json.loads(Path(catalog.tables[name]).read_text())
                body = {"metadata-location": catalog.tables[name], "metadata": metadata}
                self.reply(200, body | {"config": catalog.configs.get(name, {})})
                return
            error = {"message": f"Table does not exist: {name}", "type": "NoSuchTableException", "code": 404}
            self.reply(404, {"error": error})

        def reply(self, status: int, body: dict[str, Any]) -> None:
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    catalog.uri = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield catalog
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def hive_metastore(tables: dict[str, str]) -> Iterator[str]:
    """The address of a metastore that knows these tables, "db.t": metadata file; it needs thrift."""
    from hive_metastore import ThriftHiveMetastore
    from hive_metastore.ttypes import GetTableResult, NoSuchObjectException, Table
    from thrift.protocol.TBinaryProtocol import TBinaryProtocol
    from thrift.transport import TSocket, TTransport

    class Metastore:
        def get_table(self, dbname: str, tbl_name: str) -> Any:
            if f"{dbname}.{tbl_name}" not in tables:
                raise NoSuchObjectException(f"{dbname}.{tbl_name} table not found")
            place = {"table_type": "ICEBERG", "metadata_location": tables[f"{dbname}.{tbl_name}"]}
            return Table(dbName=dbname, tableName=tbl_name, parameters=place)

        def get_table_req(self, req: Any) -> Any:
            return GetTableResult(table=self.get_table(req.dbName, req.tblName))

    processor = ThriftHiveMetastore.Processor(Metastore())

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            socket = TSocket.TSocket()
            socket.setHandle(self.request)
            protocol = TBinaryProtocol(TTransport.TBufferedTransport(socket))
            try:
                while True:
                    processor.process(protocol, protocol)
            except (TTransport.TTransportException, EOFError):
                pass  # the client has gone

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"thrift://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
