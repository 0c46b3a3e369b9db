"""The requests to each metadata service, and the meaning of its answers."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator

import pytest
from clouds import Cloud, cloud

from elastic_notices import aws, azure, gcp
from elastic_notices.metadata import MAX_BYTES, TIMEOUT_SECONDS, Answer, Notice, NotUnderstoodError, ask
from elastic_notices.plugin import AZURE_TAG, chosen, cloud_of, read_dmi

NOON = 1_474_309_787.0  # Mon, 19 Sep 2016 18:29:47 GMT


@pytest.fixture
def service() -> Iterator[Cloud]:
    with cloud() as running:
        yield running


# AWS -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "notice"),
    [
        (
            '{"action": "terminate", "time": "2016-09-19T18:31:47Z"}',
            Notice("AWS terminates this spot instance at 2016-09-19T18:31:47Z", 120.0),
        ),
        (
            '{"action": "stop", "time": "2016-09-19T18:29:52Z"}',
            Notice("AWS stops this spot instance at 2016-09-19T18:29:52Z", 5.0),
        ),
        (
            '{"action": "hibernate", "time": "2016-09-19T18:31:47Z"}',
            Notice("AWS hibernates this spot instance at 2016-09-19T18:31:47Z", 0.0),
        ),
        (
            '{"action": "terminate", "time": "2016-09-19T18:00:00Z"}',
            Notice("AWS terminates this spot instance at 2016-09-19T18:00:00Z", 0.0),
        ),
    ],
)
def test_an_instance_action(text: str, notice: Notice) -> None:
    assert aws.parse_action(text, NOON) == notice


GARBAGE = ["", "<html>", "[]", "null", "{}", '{"action": "dance", "time": "2016-09-19T18:31:47Z"}', "[" * 100_000]


@pytest.mark.parametrize("text", [*GARBAGE, '{"action": "stop", "time": "soon"}', '{"action": "stop", "time": 7}'])
def test_a_text_that_is_no_instance_action_is_refused(text: str) -> None:
    with pytest.raises(NotUnderstoodError):
        aws.parse_action(text, NOON)


def test_an_instance_is_asked_with_a_token_and_announces_nothing_at_first(service: Cloud) -> None:
    source = aws.SpotKey(aws.ACTION, lambda: NOON, service.url)
    assert source.look() == []
    assert source.look() == []
    puts = [path for method, path in service.asked if method == "PUT"]
    assert puts == ["/latest/api/token"], "one token serves for hours"


def test_an_interruption_and_a_recommendation(service: Cloud) -> None:
    action, rebalance = (aws.SpotKey(key, lambda: NOON, service.url) for key in aws.PARSERS)
    service.announce("spot/instance-action", '{"action": "terminate", "time": "2016-09-19T18:31:47Z"}')
    service.announce("events/recommendations/rebalance", '{"noticeTime": "2016-09-19T18:20:00Z"}')
    assert [notice.seconds for notice in action.look() or ()] == [120.0]
    (hint,) = rebalance.look() or ()
    assert (hint.seconds, "2016-09-19T18:20:00Z" in hint.what) == (None, True)


def test_an_interruption_is_found_while_the_recommendation_fails(service: Cloud) -> None:
    action, rebalance = (aws.SpotKey(key, lambda: NOON, service.url) for key in aws.PARSERS)
    service.announce("spot/instance-action", '{"action": "terminate", "time": "2016-09-19T18:31:47Z"}')
    service.announce("events/recommendations/rebalance", "<html>")
    with pytest.raises(NotUnderstoodError):
        rebalance.look()
    assert [notice.seconds for notice in action.look() or ()] == [120.0]


def test_a_token_that_is_not_valid_any_more_is_replaced(service: Cloud) -> None:
    source = aws.SpotKey(aws.ACTION, lambda: NOON, service.url)
    source._token = "of the machine before"
    assert source.look() == []
    assert service.asked.count(("PUT", "/latest/api/token")) == 1


@pytest.mark.parametrize(("said", "found"), [(None, []), ("spot", []), ("on-demand", None), ("capacity-block", None)])
def test_only_a_spot_instance_is_asked_for_more_and_is_asked_once_what_it_is(
    service: Cloud, said: str | None, found: list[Notice] | None
) -> None:
    if said is not None:
        service.announce("instance-life-cycle", said)
    source = aws.SpotKey(aws.ACTION, lambda: NOON, service.url, spot_only=True)
    assert [source.look(), source.look()] == [found, found]
    paths = [path.removeprefix("/latest/meta-data/") for method, path in service.asked if method == "GET"]
    if found is None:
        assert {*paths} == {"instance-life-cycle"}
    else:
        assert (paths.count("instance-life-cycle"), paths.count("spot/instance-action")) == (1, 2)


# GCP -----------------------------------------------------------------------------------------------------------------


def test_a_machine_is_not_preempted_and_then_is(service: Cloud) -> None:
    source = gcp.MetadataKey(gcp.PREEMPTED, service.url.removeprefix("http://"))
    assert source.look() == []
    found: list[Notice] = []
    waiting = threading.Thread(target=lambda: found.extend(source.look()))
    waiting.start()
    service.wait_for_request("/computeMetadata/v1/instance/preempted", 2)
    service.announce("preempted", "TRUE")
    waiting.join(30)
    assert found == [Notice("GCP preempts this machine", 30.0)]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("NONE", []), ("MIGRATE_ON_HOST_MAINTENANCE\n", [None]), ("TERMINATE_ON_HOST_MAINTENANCE", [60.0])],
)
def test_maintenance_of_the_host(service: Cloud, text: str, seconds: list[float | None]) -> None:
    service.announce("maintenance-event", text)
    source = gcp.MetadataKey(gcp.MAINTENANCE, service.url.removeprefix("http://"))
    assert [notice.seconds for notice in source.look()] == seconds


@pytest.mark.parametrize(
    ("upcoming", "seconds"),
    [
        ('{"window_start_time": "2016-09-19T19:29:47Z", "latest_window_start_time": "2016-09-19T20:00:00Z"}', None),
        ('{"windowStartTime": "2016-09-19T18:32:00Z"}', 133.0),
        ('{"latestWindowStartTime": "2016-09-19T20:00:00Z"}', 60.0),
        ('{"startTime": "2016-09-19T18:00:00Z"}', 60.0),
        ('{"windowStartTime": "2016-09-21T18:30:00Z"}', 60.0),
        ('{"windowStartTime": "2016-09-19T18:32:00"}', 60.0),
        ('{"windowStartTime": "soon"}', 60.0),
        ("[" * 100_000, 60.0),
        ('{ "error": "no notifications have been received yet, try again later" }', 60.0),
        (None, 60.0),
    ],
)
def test_the_node_stays_until_the_last_minutes_before_maintenance_that_is_announced_an_hour_ahead(
    service: Cloud, upcoming: str | None, seconds: float | None
) -> None:
    service.announce("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE")
    if upcoming is not None:
        service.announce("upcoming-maintenance", upcoming)
    source = gcp.MetadataKey(gcp.MAINTENANCE, service.url.removeprefix("http://"), now=lambda: NOON)
    (notice,) = source.look()
    assert notice.seconds == seconds
    if seconds is None:
        assert notice.what == "GCP terminates this machine for maintenance of its host at 2016-09-19T19:29:47Z"


@pytest.mark.parametrize("parse", gcp.PARSERS.values())
@pytest.mark.parametrize("text", GARBAGE)
def test_an_unknown_value_is_refused(parse: object, text: str) -> None:
    with pytest.raises(NotUnderstoodError):
        parse(text)  # type: ignore[operator]


# Azure ---------------------------------------------------------------------------------------------------------------


def document(**event: object) -> str:
    plain = {
        "EventId": "f020ba2e",
        "EventType": "Preempt",
        "ResourceType": "VirtualMachine",
        "Resources": ["vm0", "vm7"],
        "EventStatus": "Scheduled",
        "NotBefore": "Mon, 19 Sep 2016 18:30:17 GMT",
        **event,
    }
    return json.dumps({"DocumentIncarnation": 1, "Events": [plain]})


@pytest.mark.parametrize(
    ("event", "seconds"),
    [
        ({}, [30.0]),
        ({"EventType": "Terminate"}, [30.0]),
        ({"EventType": "Reboot"}, [30.0]),
        ({"EventType": "Redeploy"}, [30.0]),
        ({"EventType": "Freeze"}, [None]),
        ({"EventType": "Dance"}, []),
        ({"Resources": ["vm7"]}, []),
        ({"EventStatus": "Started", "NotBefore": ""}, [0.0]),
        ({"EventStatus": "Started"}, [0.0]),
    ],
)
def test_a_scheduled_event(event: dict[str, object], seconds: list[float | None]) -> None:
    assert [notice.seconds for notice in azure.parse_events(document(**event), "vm0", NOON)] == seconds


@pytest.mark.parametrize("text", [*GARBAGE, '{"Events": [7]}', document(NotBefore="soon")])
def test_a_text_that_is_no_list_of_scheduled_events_is_refused(text: str) -> None:
    with pytest.raises(NotUnderstoodError):
        azure.parse_events(text, "vm0", NOON)


def test_a_machine_asks_for_its_name_once_and_ignores_the_events_of_others(service: Cloud) -> None:
    source = azure.ScheduledEvents(lambda: NOON, service.url)
    service.schedule_azure("Preempt", 30.0, machine="vm7")
    assert source.look() == []
    service.schedule_azure("Preempt", 30.0)
    assert len(source.look() or ()) == 1
    assert [path for _, path in service.asked].count("/metadata/instance/compute/name") == 1


@pytest.mark.parametrize(("priority", "found"), [("Spot", []), ("Low", []), ("Regular", None), ("", None)])
def test_scheduled_events_are_enabled_for_a_spot_machine_only(
    service: Cloud, priority: str, found: list[Notice] | None
) -> None:
    service.announce("priority", priority)
    assert azure.ScheduledEvents(lambda: NOON, service.url, spot_only=True).look() == found
    assert (("GET", "/metadata/scheduledevents") in service.asked) == (found is not None)


# The requests --------------------------------------------------------------------------------------------------------


def answering(data: bytes) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(data)

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize(
    "data",
    [
        b"hello\r\n",
        b"",
        b"HTTP/1.1 200 OK\r\n\r\n\xff\xfe",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (MAX_BYTES + 1),
    ],
    ids=["no HTTP", "nothing", "no text", "too long"],
)
def test_an_answer_that_is_none_is_an_error(data: bytes) -> None:
    for url in answering(data):
        with pytest.raises((OSError, NotUnderstoodError)):
            ask(url, {})


@pytest.mark.parametrize("url", ["file:///etc/passwd", "foo/latest", "ftp://127.0.0.1/", ""])
def test_only_http_is_asked(url: str) -> None:
    with pytest.raises(NotUnderstoodError, match="is no HTTP address"):
        ask(url, {})


def test_a_redirect_is_not_followed_and_no_proxy_is_used(service: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    for url in answering(f"HTTP/1.1 302 Found\r\nLocation: {service.url}/x\r\nContent-Length: 0\r\n\r\n".encode()):
        assert ask(url, {}).status == 302
    assert service.asked == []


# Which cloud ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dmi", "name"),
    [
        ({"sys_vendor": "Amazon EC2"}, "aws"),
        ({"sys_vendor": "Xen", "bios_vendor": "Amazon EC2"}, "aws"),
        ({"product_name": "Google Compute Engine"}, "gcp"),
        ({"sys_vendor": "Microsoft Corporation", "chassis_asset_tag": AZURE_TAG}, "azure"),
        ({"sys_vendor": "Microsoft Corporation"}, ""),
        ({"sys_vendor": "Dell Inc."}, ""),
        ({}, ""),
    ],
)
def test_the_firmware_says_which_cloud_a_machine_is_of(dmi: dict[str, str], name: str) -> None:
    assert cloud_of(dmi) == name
    assert chosen("auto", lambda: dmi) == name
    assert chosen("", lambda: dmi) == ""
    assert chosen("gcp", lambda: dmi) == "gcp"


def test_missing_fields_of_the_firmware_are_left_out(tmp_path: object) -> None:
    from pathlib import Path

    folder = Path(str(tmp_path))
    (folder / "sys_vendor").write_text("Amazon EC2\n")
    (folder / "bios_vendor").mkdir()
    assert read_dmi(folder) == {"sys_vendor": "Amazon EC2"}
    assert read_dmi(folder / "none") == {}


def test_only_the_first_request_for_azures_events_may_take_minutes() -> None:
    """It enables the service. A later one that stalls must not outlast a notice of 30 s."""
    asked: list[float] = []

    def send(url: str, headers: object, timeout: float = TIMEOUT_SECONDS) -> Answer:
        if azure.EVENTS in url:
            asked.append(timeout)
            return Answer(200, '{"Events": []}', {})
        return Answer(200, "vm0", {})

    source = azure.ScheduledEvents(lambda: NOON, send=send)
    for _ in range(3):
        source.look()
    assert asked == [azure.FIRST_SECONDS, TIMEOUT_SECONDS, TIMEOUT_SECONDS]
    assert TIMEOUT_SECONDS <= 10.0
