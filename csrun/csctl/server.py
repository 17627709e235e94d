"""The cluster server: answers the published csctl client's protocol from the records of this machine."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import json_format

from cerebras_tensorflow.errors import SystemStateError
from cerebras_tensorflow.system import job_priority, protocol
from cerebras_tensorflow.text import is_number
from csrun.csctl import actions, resources
from csrun.csctl.resources import Filters, ResourceError, Resources

PROTOS = "csrun/csctl/protos"
CHUNK_BYTES = 1 << 20
MAX_EXPORTS = 16

CSCTL = protocol.load(f"{PROTOS}/csctl.proto")
api = CSCTL.messages
messages = protocol.load(f"{PROTOS}/resources.proto").messages


class CsCtl:
    """Answers csctl. Final.

    Args:
        home: Folder of the systems and jobs.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._exports: dict[str, Path] = {}
        self._lock = threading.Lock()
        self._folder = tempfile.TemporaryDirectory(prefix="csctl-exports-")

    def GetServerConfig(self, _request: Any, _context: grpc.ServicerContext) -> Any:
        """Return that clients need a token."""
        return api.GetServerConfigResponse(is_user_auth_enabled=True)

    def Get(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Return resources as a table, as JSON or as messages."""
        return self._guarded(context, lambda: self._get(request, context))

    def Patch(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Change a job's labels."""
        return self._guarded(context, lambda: self._patch(request))

    def CancelJobV2(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Ask a job to stop, and kill it if it does not."""
        return self._guarded(context, lambda: self._cancel(request, context))

    def ClearWorkerCache(self, _request: Any, _context: grpc.ServicerContext) -> Any:
        """Reply that there is nothing to clear."""
        return api.ClearWorkerCacheResponse(message=resources.NO_WORKER_CACHE)

    def UpdateJobPriority(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Change a job's place in the queue."""
        return self._guarded(context, lambda: self._set_priority(request))

    def GetClusterTopology(self, _request: Any, _context: grpc.ServicerContext) -> Any:
        """Return no connections: there are no switches."""
        return api.GetClusterTopologyResponse()

    def ListResourceTypes(self, _request: Any, _context: grpc.ServicerContext) -> Any:
        """Return the types of resources."""
        return api.ListResourceTypesResponse(items=[api.ResourceType(name=name) for name in resources.TYPES])

    def CreateLogExport(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Prepare a job's log for download."""
        return self._guarded(context, lambda: self._export(request))

    def GetLogExport(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Return that an export is ready: CreateLogExport returns only when it is."""
        return self._guarded(
            context,
            lambda: (
                self._exported(request.export_id) and api.GetLogExportResponse(status=api.LOG_EXPORT_STATUS_COMPLETED)
            ),
        )

    def DownloadLogExport(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Return the next piece of an export; the page token is an offset in the file."""
        return self._guarded(context, lambda: self._download(request))

    def _guarded(self, context: grpc.ServicerContext, answer: Callable[[], Any]) -> Any:
        """Return the answer; turn our errors into gRPC errors with the same text."""
        try:
            return answer()
        except ResourceError as exc:
            context.abort(grpc.StatusCode.NOT_FOUND, str(exc))
        except SystemStateError as exc:
            context.abort(grpc.StatusCode.UNAVAILABLE, str(exc))

    def _get(self, request: Any, context: grpc.ServicerContext) -> Any:
        options = request.options
        filters = Filters(
            all_states=options.all_states,
            user=_user_name(context) if options.current_user_only else None,
            labels=dict(options.label_filters),
            system=options.system or None,
            limit=options.limit or 5000,
            errors_only=options.error_only,
            role="worker" if options.node_only else "system" if options.system_only else options.role,
        )
        wanted = resources.get(self._home, request.type, request.name, filters)
        if request.accept == api.JSON_METHOD:
            raw = json.dumps(wanted.content if wanted.objects else {}).encode()
        elif request.representation == api.TABLE_REPRESENTATION:
            raw = _table(wanted).SerializeToString()
        else:
            raw = _message(wanted).SerializeToString()
        return api.GetResponse(type=request.type, content_type=request.accept, raw=raw)

    def _patch(self, request: Any) -> Any:
        if resources.SINGULAR.get(request.type, request.type) != "jobs":
            raise ResourceError(f"only jobs have labels, not {request.type}")
        try:
            changes = json.loads(request.body)["meta"]["labels"]
        except (ValueError, KeyError, TypeError, RecursionError) as exc:
            raise ResourceError('expected a body like {"meta": {"labels": {"key": "value"}}}') from exc
        job = actions.label(self._home, request.name, changes)
        raw = json.dumps(resources.job_object(job)).encode()
        return api.PatchResponse(type=request.type, content_type=api.JSON_METHOD, raw=raw)

    def _cancel(self, request: Any, context: grpc.ServicerContext) -> Any:
        job = actions.request_cancel(self._home, request.job_id, _user_name(context))
        threading.Thread(target=actions.finish_cancel, args=(self._home, job), daemon=True).start()
        return api.CancelJobResponse(message="Job canceled successfully")

    def _set_priority(self, request: Any) -> Any:
        try:
            priority = job_priority.parse(request.job_priority)
        except ValueError as exc:
            raise ResourceError(str(exc)) from exc
        # A caller has shown the token of this server's user. The number that it says it has proves nothing.
        actions.set_priority(self._home, request.job_id, priority, os.getuid())
        text = f"successfully updated {request.job_id} job priority to {request.job_priority}"
        return api.UpdateJobPriorityResponse(message=text)

    def _export(self, request: Any) -> Any:
        export_id = secrets.token_hex(8)
        folder = Path(self._folder.name) / export_id
        folder.mkdir()
        try:
            path = actions.export_log(self._home, request.name, folder)
        except BaseException:
            shutil.rmtree(folder)
            raise
        with self._lock:
            self._exports[export_id] = path
            while len(self._exports) > MAX_EXPORTS:
                oldest = next(iter(self._exports))
                shutil.rmtree(self._exports.pop(oldest).parent, ignore_errors=True)
        return api.CreateLogExportResponse(export_id=export_id)

    def _exported(self, export_id: str) -> Path:
        if export_id not in self._exports:
            raise ResourceError(f"export {export_id} not found")
        return self._exports[export_id]

    def _download(self, request: Any) -> Any:
        path = self._exported(request.export_id)
        start = int(request.page_token) if is_number(request.page_token) else 0
        with path.open("rb") as file:
            file.seek(start)
            chunk = file.read(CHUNK_BYTES)
        rest = path.stat().st_size - start - len(chunk)
        token = str(start + len(chunk)) if rest > 0 else ""
        return api.DownloadLogExportResponse(chunk=chunk, next_page_token=token, estimated_remaining_bytes=max(rest, 0))


def client_config(address: str, certificate: bytes | None) -> str:
    """Return the content of the published csctl's --csconfig file."""
    import base64

    if certificate is None:
        authority = {"certificateAuthority": os.devnull}  # a path instead of data: the client connects without TLS
    else:
        authority = {"certificateAuthorityData": base64.b64encode(certificate).decode("ascii")}
    return json.dumps(resources.client_settings(address, authority), indent=2)


def add_to(server: grpc.Server, home: Path) -> None:
    """Make a gRPC server answer csctl."""
    CSCTL.services["CsCtlV1"].add_to(server, CsCtl(home))


def _table(wanted: Resources) -> Any:
    return messages.Table(
        columns=[messages.ColumnDefinition(name=name) for name in wanted.columns],
        rows=[messages.RowData(cells=row) for row in wanted.rows],
    )


def _message(wanted: Resources) -> Any:
    name = wanted.kind if wanted.is_single else f"{wanted.kind}List"
    return json_format.ParseDict(wanted.content, getattr(messages, name)(), ignore_unknown_fields=True)


def _user_name(context: grpc.ServicerContext) -> str:
    """Return the user's name as the client says it: for lists and records, never for rights."""
    import pwd

    uid = str(dict(context.invocation_metadata()).get("auth-uid", ""))
    try:
        return pwd.getpwuid(int(uid)).pw_name
    except (ValueError, KeyError):
        return uid or "unknown"
