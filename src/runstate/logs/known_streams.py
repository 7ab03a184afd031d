"""What a store has found out about the streams that it uses. A stream's model and tenant never change."""

from __future__ import annotations

from collections.abc import Sequence

from runstate.errors import TenantMismatch
from runstate.logs.log import EventLog, StreamInfo
from runstate.logs.stream_models import check_model
from runstate.models.model import Draft

_known_max = 10_000


class KnownStreams:
    """Looks streams up in a log, checks that they are of one model, and remembers their tenants."""

    def __init__(self, log: EventLog, model: str) -> None:
        self._log, self._model = log, model
        self._tenants: dict[str, str] = {}

    def find(self, stream: str) -> StreamInfo | None:
        """
        Raises:
            ModelMismatch: the stream records another model.
        """
        info = self._log.stream(stream)
        if info is None:
            self.forget(stream)
            return None
        check_model(stream, info.model, self._model)
        if len(self._tenants) >= _known_max:
            self._tenants.clear()
        self._tenants[stream] = info.tenant
        return info

    def check_model(self, stream: str) -> None:
        """`find` for a caller that does not need the answer: an earlier one is enough.

        Raises:
            ModelMismatch: the stream records another model.
        """
        if stream not in self._tenants:
            self.find(stream)

    def check_tenants(self, stream: str, drafts: Sequence[Draft]) -> None:
        """
        Raises:
            TenantMismatch: a draft is of another tenant than the stream, or than the draft before it.
        """
        if not any(draft.tenant for draft in drafts):
            return
        if self._other_tenant(stream, drafts) is None:
            return
        self.find(stream)  # It may have been deleted and begun again since.
        # A retry is answered, also of an event that an older version has stored for another tenant.
        new = [draft for draft in drafts if self._log.find(stream, draft.key) is None]
        other = self._other_tenant(stream, new) if any(draft.tenant for draft in new) else None
        if other is not None:
            raise TenantMismatch(
                f"The stream {stream[:80]!r} belongs to the tenant {self._tenant(stream, drafts)[:80]!r}, not to "
                f"{other[:80]!r}. Use another stream id: they are shared by all tenants of a log",
                stream=stream,
                given=other,
            )

    def forget(self, stream: str) -> None:
        self._tenants.pop(stream, None)

    def _tenant(self, stream: str, drafts: Sequence[Draft]) -> str:
        if stream not in self._tenants:
            self.find(stream)
        return self._tenants.get(stream) or next(draft.tenant for draft in drafts if draft.tenant)

    def _other_tenant(self, stream: str, drafts: Sequence[Draft]) -> str | None:
        tenant = self._tenant(stream, drafts)
        return next((draft.tenant for draft in drafts if draft.tenant not in ("", tenant)), None)
