"""Table of every key of the configuration, from which the reader and the JSON schema follow."""

from typing import Final, get_args

from perdure.config.kinds import (
    AMOUNT,
    DURATION,
    DURATION_OR_NONE,
    FLAG,
    HOST_OR_NETWORK,
    MODEL_NAME,
    NETWORK,
    OBJECT,
    OPEN_URL,
    OUTPUT,
    POSITIVE,
    RATE,
    REDIS_URL,
    RULE,
    SHARE,
    SIZE,
    TEXT,
    URL,
    Block,
    Either,
    Free,
    Many,
    Named,
    Spec,
    built_in_or_object,
    choice,
    integer,
)
from perdure.core.providers import catalog as providers
from perdure.core.session.permissions import EFFECTS
from perdure.views.literals import DecisionKind, Role

BUILT_IN: Final = ("ask_user", "wait", "todo_write", "execute_command")
PROVIDERS: Final = ("scripted", *providers.PROVIDERS)
HOOK_TYPES: Final = (
    *("before_task_start", "after_task_start", "before_task_complete"),
    *("after_task_complete", "before_task_fail", "after_task_fail"),
)
OCCASIONS: Final = ("pending", "expiring", "decided", "expired", "completed", "failed")

_COUNT: Final = integer(1)
_SQL: Final = Block(
    {"driver": choice("driver", "sqlite", "postgres"), "database": TEXT},
    required=("driver", "database"),
)
_STORE: Final = Block(
    {
        "backend": choice("backend", "sql", "memory", "files"),
        "sql": _SQL,
        "files": Block({"path": TEXT}, required=("path",)),
        "index": REDIS_URL,
    },
    required=("backend",),
)
_LLM: Final = Block(
    {
        "provider": choice("provider", *PROVIDERS),
        "model": TEXT,
        "script": TEXT,
        "base_url": OPEN_URL,
        "api_key": TEXT,
        "settings": Free(),
    },
    required=("provider",),
)
_PRICE: Final = Block(  # US dollars for a million tokens
    {"input": AMOUNT, "output": AMOUNT, "cache_read": AMOUNT, "cache_write": AMOUNT},
    required=("input", "output"),
)
_MCP_SERVER: Final = Block(
    {
        "command": Many(TEXT),
        "env": Named(TEXT, names=None),
        "cwd": TEXT,
        "url": URL,
        "headers": Named(TEXT, names=None),
        "idle_timeout": DURATION,
        "connect_timeout": DURATION,
    },
    either=("command", "url"),
)
_TASK: Final = Block(
    {
        "backend": choice("backend", "memory", "sql"),
        "worker_pool": _COUNT,
        "sql": _SQL,
        "input_timeout": DURATION,
        "timeout": DURATION,
        "hitl": Block({"mode": choice("hitl.mode", "auto", "blocking", "async", empty="auto")}),
        "on_expire": choice("on_expire", "fail", "cancel", "keep"),
        "expire_grace": DURATION,
    }
)
_POLICY: Final[dict[str, Spec]] = {
    "allowed_decisions": Many(choice("decision", *get_args(DecisionKind))),
    "approvers": Many(TEXT),
    "min_approvals": _COUNT,
    "not_by_starter": FLAG,
}
_USE: Final = Block(
    {
        "use": OBJECT,
        "name": TEXT,
        "description": TEXT,
        "requires_approval": FLAG,
        "approval_prompt": TEXT,
        "approval_timeout": DURATION_OR_NONE,
        "deferred": FLAG,
        "external": FLAG,
        "timeout": DURATION_OR_NONE,
        "idempotent": FLAG,
        "on_crash": choice("on_crash", "tell", "retry", "ask"),
        "aliases": Many(TEXT),
        "redact": Many(TEXT),
        **_POLICY,
    }
)
_MCP_TOOLS: Final = Block(
    {
        "mcp": TEXT,
        "only": Many(TEXT),
        "requires_approval": Either(FLAG, Many(TEXT)),
        "approval_timeout": DURATION_OR_NONE,
        "idempotent": Either(FLAG, Many(TEXT)),
        "on_crash": choice("on_crash", "tell", "ask"),
        "timeout": DURATION_OR_NONE,
        "prefix": TEXT,
        **_POLICY,
    }
)
_COMPACTION: Final = Block(
    {"at": POSITIVE, "keep": _COUNT, "window": _COUNT, "first": FLAG, "instructions": TEXT}
)
_AGENT: Final = Block(
    {
        "llm": TEXT,
        "fallback": Either(TEXT, Many(TEXT)),
        "retries": integer(0),
        "description": TEXT,
        "instructions": TEXT,
        "instructions_file": TEXT,
        "session_store": TEXT,
        "task": _TASK,
        "permissions": Block({effect: Many(RULE) for effect in EFFECTS}),
        "tools": Many(
            Either(built_in_or_object(BUILT_IN), blocks={"use": _USE, "mcp": _MCP_TOOLS})
        ),
        "sub_agents": Many(TEXT),
        "background": Block({"resume_ended": FLAG, "queue_message": FLAG}),
        "max_turns": _COUNT,
        "queue": TEXT,
        "show_thinking": FLAG,
        "budget": Block(
            {
                "turns": _COUNT,
                "tokens": _COUNT,
                "seconds": POSITIVE,
                "children": _COUNT,
                "cost": POSITIVE,
            }
        ),
        "compaction": Either(FLAG, block=_COMPACTION),
        "output_type": OUTPUT,
        "while_waiting": choice("while_waiting", "queue", "reject", "cancel_calls"),
        "aliases": Many(TEXT),
    },
    required=("llm",),
    either=("instructions", "instructions_file"),
)
_TOKEN: Final = Block(
    {
        "name": TEXT,
        "token": TEXT,
        "role": choice("role", *get_args(Role)),
        "on_behalf": FLAG,
        "tenant": TEXT,
    },
    required=("name", "token"),
)
_WEBHOOK: Final = Block(
    {"url": URL, "secret": TEXT, "on": Many(choice("occasion", *OCCASIONS))},
    required=("url",),
)
_SERVER: Final = Block(
    {
        "host": TEXT,
        "port": integer(0, 65535),
        "trusted_proxies": Many(NETWORK),
        "rate_limit": Block({"per_source": RATE, "per_id": RATE}),
        "max_body": SIZE,
        "public_url": OPEN_URL,
        "webhook_secret": Either(TEXT, Many(TEXT)),  # the first signs, all of them verify
        "tokens": Many(_TOKEN),
        "webhooks": Many(_WEBHOOK),
        "webhook_allow": Many(HOST_OR_NETWORK),
        "expiring_after": SHARE,
        "mcp": Block({"enabled": FLAG, "block": DURATION, "approve": FLAG, "links": FLAG}),
    }
)
_EXEC_LIMITS: Final = Block(
    {
        "processes": _COUNT,
        "open_files": _COUNT,
        "file_size": SIZE,
        "tmp_size": SIZE,
        "disk": SIZE,
        "memory": SIZE,
        "cpus": POSITIVE,
        "address_space": SIZE,
        "timeout": DURATION,
    }
)
_TASKS: Final = Block(
    {
        "root": TEXT,
        "sandbox": choice("sandbox", "bwrap", "landlock", "none"),
        "run_as": TEXT,
        "allow_weak": FLAG,
        "require_sandbox": FLAG,
        "network": Either(choice("network", "off", "host"), block=Block({"allow": Many(TEXT)})),
        "limits": _EXEC_LIMITS,
        "ro_paths": Many(TEXT),
        "env": Named(TEXT, names=None),
        "hooks": Many(
            Block(
                {
                    "on": choice("hook", *HOOK_TYPES),
                    "use": OBJECT,
                    "priority": integer(-1_000_000),
                    "veto": FLAG,
                    "timeout": DURATION,
                },
                required=("on", "use"),
            )
        ),
    }
)

TABLE: Final = Block(
    {
        "session_stores": Named(_STORE),
        "llms": Named(_LLM),
        "prices": Named(_PRICE, MODEL_NAME, hint="name a model as agents do: provider:model"),
        "mcp_servers": Named(_MCP_SERVER),
        "deps": OBJECT,
        "agents": Named(_AGENT),
        "server": _SERVER,
        "tasks": _TASKS,
        "retention": Block({"settled_calls": DURATION}),
        "telemetry": Block({"enabled": FLAG, "content": FLAG}),
        "recovery": Block(
            {"running": choice("recovery.running", "resume", "fail"), "poison_after": _COUNT}
        ),
    }
)
