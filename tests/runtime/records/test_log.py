"""The log of a session in memory."""

from msgspec.structs import replace

from perdure.core.log.events import User
from perdure.runtime.records.log import Log, as_record
from perdure.store.memory import MemoryStore


def test_a_log_compares_stored_records_with_its_own_by_their_bytes() -> None:
    log = Log(MemoryStore(), "s/t/1")
    facts = [User(role="user", content=text) for text in ("one", "two")]
    records = [as_record(fact, 1) for fact in facts]
    log.append(facts, records)
    assert log.has_records(records, 0)
    assert log.has_records(records[1:], 1)
    assert not log.has_records(records[1:], 0)
    assert not log.has_records([records[0], replace(records[1], data=b"{}")], 0)
    assert not log.has_records([records[0], replace(records[1], type="other")], 0)
    assert not log.has_records([*records, records[0]], 0)
