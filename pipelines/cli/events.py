"""``recsys events``: events of other programs into the online store."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli.output import print_lines

app = typer.Typer(no_args_is_help=True)


@app.command()
def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="kafka://HOST:PORT/TOPIC.")],
    store: Annotated[
        str,
        typer.Option(
            envvar="RECSYS_STORE", help="sqlite:FOLDER or redis://HOST:PORT/0, as of recsys serve."
        ),
    ],
    group: Annotated[
        str, typer.Option(help="Consumers of a group share a topic and remember where they are.")
    ] = "recsys",
    rename: Annotated[
        list[str] | None,
        typer.Option(
            metavar="THEIRS=OURS",
            help="Name of a field or event type in the messages (repeatable).",
        ),
    ] = None,
    dead_letters: Annotated[Path, typer.Option(help="File of messages that are no events.")] = Path(
        "dead-letters.jsonl"
    ),
) -> None:
    """Store the events of a Kafka topic until interrupted; lists follow them at once.

    Messages are JSON objects with the fields of POST /v1/events. Settings and passwords are those
    of librdkafka, from variables such as RECSYS_KAFKA_SASL_PASSWORD.

    [bold]Examples[/]

      recsys events consume kafka://broker:9092/clicks --store sqlite:runs/shop/online

      recsys events consume kafka://broker:9092/orders --store sqlite:runs/shop/online \
--rename customer=user_id --rename paid=purchase
    """
    from pipelines.inputs.kafka_events import MessageReader, TopicConsumer
    from pipelines.inputs.online_events import opened

    reader = MessageReader.parse(rename or ())
    consumer = TopicConsumer(topic, group, lambda line: print_lines(line, note=True))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: consumer.stop.set())
    with opened(store, readonly=False) as kept:
        counts = consumer.run(kept, dead_letters, reader)
    where = f", see {dead_letters}" if counts.broken else ""
    print_lines(f"{counts}{where}")
