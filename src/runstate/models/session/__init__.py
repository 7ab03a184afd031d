"""Sessions: the event log of runs that fork and rewind, and the projections over it."""

from runstate.models.session.model import SESSION, SessionModel
from runstate.models.session.projections import Projections
from runstate.models.session.state import Session

__all__ = ["SESSION", "Projections", "Session", "SessionModel"]
