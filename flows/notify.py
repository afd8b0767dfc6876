"""Tells a person how a flow ended, through a notification block that they set up in Prefect. Off by default."""

from __future__ import annotations

from prefect.logging import get_run_logger
from prefect.states import State


def notify_about(block: str | None, state: State) -> None:
    """Sends the state's name and message to the block TYPE/NAME, for example slack-webhook/team.

    A notification that can't be sent is a warning: it changes nothing about the run it tells of.
    """
    if not block:
        return
    from prefect.blocks.core import Block

    try:
        Block.load(block).notify(body=state.message or state.name, subject=f"retrain: {state.name}")
    except Exception as error:  # any service, any failure
        get_run_logger().warning("the notification to %s was not sent: %s", block, error)
