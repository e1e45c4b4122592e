"""Views: the public values that Python, HTTP, the command line and clients show the same way.

`replace(view, field=…)` varies one. A view with verbs, such as a pending call or a background task,
has them where a runtime or client returned it; a copy has none.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.views.base import (
        Error,
        replace,
    )
    from perdure.views.calls import (
        BudgetLimit,
        CallProgress,
        CallResult,
        CallTimes,
        DecidedCall,
        InputData,
        InputMessage,
        InputText,
    )
    from perdure.views.findings import (
        Finding,
        Step,
    )
    from perdure.views.health import (
        AgentInfo,
        CallCounts,
        Delivery,
        DeliveryDetails,
        Health,
        HourCounts,
        QueueInfo,
        RecoveryReport,
        Statistics,
        ToolInfo,
        WorkerInfo,
    )
    from perdure.views.sessions import (
        BusyStatus,
        DeletedSession,
        DrivingWorker,
        IdleStatus,
        LaunchedAgent,
        MessageList,
        PausedState,
        Permission,
        RetryStatus,
        SessionSummary,
        SummaryPage,
        SummaryRequest,
        WaitingCall,
        WaitingStatus,
    )
    from perdure.views.tasks import (
        AgentOutcome,
        AppendedLogs,
        ChangedTask,
        Checkpoint,
        CheckpointChanges,
        CheckpointList,
        ClearedAgents,
        CommandAvailability,
        CommandOutput,
        DeletedCheckpoint,
        DeletedTask,
        DetachedAgent,
        Execution,
        ExecutionPage,
        FileInfo,
        FinishedCommand,
        FolderListing,
        LogLine,
        LogRecord,
        RemovedTask,
        RestoredCheckpoint,
        SandboxTask,
        StartedCommand,
        TaskDecision,
        TaskDecisions,
        TaskLog,
        TaskPage,
        VerifiedCheckpoint,
        WaitingApproval,
        WrittenFile,
    )
    from perdure.views.usage import (
        Usage,
    )

_MODULES = ("base", "calls", "findings", "health", "sessions", "tasks", "usage")

__all__ = [
    "AgentInfo",
    "AgentOutcome",
    "AppendedLogs",
    "BudgetLimit",
    "BusyStatus",
    "CallCounts",
    "CallProgress",
    "CallResult",
    "CallTimes",
    "ChangedTask",
    "Checkpoint",
    "CheckpointChanges",
    "CheckpointList",
    "ClearedAgents",
    "CommandAvailability",
    "CommandOutput",
    "DecidedCall",
    "DeletedCheckpoint",
    "DeletedSession",
    "DeletedTask",
    "Delivery",
    "DeliveryDetails",
    "DetachedAgent",
    "DrivingWorker",
    "Error",
    "Execution",
    "ExecutionPage",
    "FileInfo",
    "Finding",
    "FinishedCommand",
    "FolderListing",
    "Health",
    "HourCounts",
    "IdleStatus",
    "InputData",
    "InputMessage",
    "InputText",
    "LaunchedAgent",
    "LogLine",
    "LogRecord",
    "MessageList",
    "PausedState",
    "Permission",
    "QueueInfo",
    "RecoveryReport",
    "RemovedTask",
    "RestoredCheckpoint",
    "RetryStatus",
    "SandboxTask",
    "SessionSummary",
    "StartedCommand",
    "Statistics",
    "Step",
    "SummaryPage",
    "SummaryRequest",
    "TaskDecision",
    "TaskDecisions",
    "TaskLog",
    "TaskPage",
    "ToolInfo",
    "Usage",
    "VerifiedCheckpoint",
    "WaitingApproval",
    "WaitingCall",
    "WaitingStatus",
    "WorkerInfo",
    "WrittenFile",
    "replace",
]


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: the command line needs only a few of the modules."""
    if name in __all__:
        import importlib

        for module in _MODULES:
            home = importlib.import_module(f"perdure.views.{module}")
            if hasattr(home, name):
                return getattr(home, name)
    raise AttributeError(f"module 'perdure.views' has no attribute {name!r}")
