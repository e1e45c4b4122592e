"""Names of queues, and names that say them."""

import pytest

from perdure.core.session import naming as index
from perdure.core.session import queues
from perdure.errors import Refused


@pytest.mark.parametrize("name", ["", "@", "a@b", "a+b", "a b", "-a", "x" * 65, 7, None])
def test_what_cannot_stand_in_other_names_is_no_name_of_a_queue(name: object) -> None:
    with pytest.raises(Refused) as refused:
        queues.check_queue(name)
    assert refused.value.code == "QUEUE_INVALID"


@pytest.mark.parametrize("agent", ["shop", "a@b", "a%40b", "%", "@gpu"])
@pytest.mark.parametrize("queue", ["default", "gpu", "eu-west.1"])
def test_a_kind_says_agent_and_queue(agent: str, queue: str) -> None:
    assert index.parse_stream_kind(index.stream_kind(agent, queue)) == (agent, queue)


def test_sessions_of_the_default_queue_are_of_the_agent_alone() -> None:
    assert index.stream_kind("shop") == index.stream_kind("shop", "default") == "session:shop"


@pytest.mark.parametrize("served", [["default"], ["gpu"], ["default", "gpu"], ["b", "a", "c"]])
def test_the_name_of_a_worker_says_its_queues(served: list[str]) -> None:
    assert queues.worker_queues(queues.worker_name("vm-1-X", served)) == set(served)
    assert queues.worker_queues(queues.worker_name("v@m-1-X", served)) == set(served)


def test_a_name_that_cannot_say_all_queues_says_that_there_are_many() -> None:
    served = [f"queue-{n}" for n in range(1000)]
    name = queues.worker_name("vm-1-X", served)
    assert name == "vm-1-X@*"
    assert queues.may_serve(name, "queue-7")
    assert not queues.may_serve("vm-1-X@gpu", "queue-7")


def test_who_says_nothing_serves_the_default_queue() -> None:
    assert queues.worker_name("vm-1-X", ["default"]) == "vm-1-X"
    assert queues.worker_queues("vm-1-X") == {"default"}
