"""Due dates that passed while nothing could run: they collapse to one."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    FlowRunFilter,
    FlowRunFilterNextScheduledStartTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy, StateType
from prefect.runtime import deployment
from prefect.states import Cancelled

# One run at a time; a date that falls into a running retraining is skipped, not queued behind it.
ONE_AT_A_TIME = ConcurrencyLimitConfig(limit=1, collision_strategy=ConcurrencyLimitStrategy.CANCEL_NEW)


def drop_missed(deployment_id: UUID | str | None = None, keep: int = 0) -> int:
    """Cancels the runs of a deployment that are due but haven't started; returns how many.

    deployment_id: the running flow's own when None; outside a deployment there is nothing to do.
    keep: how many of them, the latest, may still start.
    """
    deployment_id = deployment_id or deployment.id
    if deployment_id is None:
        return 0
    with get_client(sync_client=True) as client:
        due = _due_runs(client, UUID(str(deployment_id)))
        for run in due[: len(due) - keep]:
            missed = Cancelled(name="Missed", message="due while nothing could run, or while another one ran")
            client.set_flow_run_state(run.id, missed, force=True)
    return max(len(due) - keep, 0)


def _due_runs(client: SyncPrefectClient, deployment_id: UUID) -> list:
    runs = client.read_flow_runs(
        deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[deployment_id])),
        flow_run_filter=FlowRunFilter(
            state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.SCHEDULED])),
            next_scheduled_start_time=FlowRunFilterNextScheduledStartTime(before_=datetime.now(UTC)),
        ),
    )
    return sorted(runs, key=lambda run: run.expected_start_time)
