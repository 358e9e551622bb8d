import gzip
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pipelines.datasets.parsers import (
    GENRES_100K,
    movielens_1m_official,
    movielens_1m_sequences,
    movielens_100k_official,
    movielens_100k_recbole,
)


def write_100k_official(folder: Path) -> None:
    (folder / "u.data").write_text("196\t2\t3\t881250949\n196\t1\t5\t881250950\n")
    flags = {"Comedy", "Children's"}
    bits = "|".join("1" if genre in flags else "0" for genre in GENRES_100K)
    unknown = "|".join("1" if genre == "unknown" else "0" for genre in GENRES_100K)
    lines = [
        f"1|Misérables, Les (1995)|01-Jan-1995||http://x|{bits}",
        f"2|unknown||||{unknown}",
        f"3|Alien (1979)|01-Jan-1979||http://x|{unknown}",
    ]
    (folder / "u.item").write_text("\n".join(lines) + "\n", encoding="latin-1")
    (folder / "u.user").write_text("196|49|M|writer|55105\n")


def test_movielens_100k_official(tmp_path):
    write_100k_official(tmp_path)
    tables = movielens_100k_official(tmp_path)
    assert tables["events"].rows(named=True)[0] == {
        "user_id": "196",
        "item_id": "2",
        "event_time": datetime(1997, 12, 4, 15, 55, 49, tzinfo=UTC),
        "event_type": "rating",
        "value": 3.0,
    }
    assert tables["items"].rows() == [
        ("1", "Les Misérables (1995)", ["Children's", "Comedy"], 1995, "recent"),
        ("2", "unknown", [], None, "recent"),
        ("3", "Alien (1979)", [], 1979, "classics"),
    ]
    assert tables["users"].rows() == [("196", 49, "M", "writer")]


def test_movielens_100k_of_the_wheel_reads_as_the_official_one(tmp_path):
    (tmp_path / "ml-100k.inter").write_text(
        "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
        "196\t2\t3\t881250949\n196\t1\t5\t881250950\n"
    )
    (tmp_path / "ml-100k.item").write_text(
        "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq\n"
        "1\tMisérables, Les\t1995\tChildren's Comedy\n2\tunknown\tunkonwn\tunknown\n"
        "3\tAlien\t1979\tunknown\n"
    )
    (tmp_path / "ml-100k.user").write_text(
        "user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token\n"
        "196\t49\tM\twriter\t55105\n"
    )
    write_100k_official(tmp_path)
    wheel, official = movielens_100k_recbole(tmp_path), movielens_100k_official(tmp_path)
    assert wheel.keys() == official.keys()
    for name, table in wheel.items():
        assert table.equals(official[name])


def write_1m_catalogue(folder: Path) -> None:
    (folder / "movies.dat").write_text("7::Sabrina (1995)::Comedy|Romance\n", encoding="latin-1")
    (folder / "users.dat").write_text("3::M::25::15::55117\n")


def test_movielens_1m_official(tmp_path):
    write_1m_catalogue(tmp_path)
    (tmp_path / "ratings.dat").write_text("3::7::4::978300760\n")
    tables = movielens_1m_official(tmp_path)
    time = datetime(2000, 12, 31, 22, 12, 40, tzinfo=UTC)
    assert tables["events"].rows() == [("3", "7", time, "rating", 4.0)]
    assert tables["items"].rows() == [("7", "Sabrina (1995)", ["Comedy", "Romance"], 1995)]
    assert tables["users"].rows() == [("3", "25-34", "M", "scientist")]


def test_movielens_1m_sequences_have_an_order_and_no_times(tmp_path):
    write_1m_catalogue(tmp_path)
    with gzip.open(tmp_path / "sequences_by_time.txt.gz", "wt") as file:
        file.write("3 7 9\n4 9\n")
    events = movielens_1m_sequences(tmp_path)["events"]
    assert events.columns == ["user_id", "item_id", "sequence_index", "event_type"]
    assert events.rows() == [
        ("3", "7", 0, "rating"),
        ("3", "9", 1, "rating"),
        ("4", "9", 0, "rating"),
    ]


def test_cut_file_names_its_line(tmp_path):
    write_1m_catalogue(tmp_path)
    (tmp_path / "ratings.dat").write_text("3::7::4::978300760\n3::8::\n")
    with pytest.raises(ValueError, match=r"ratings\.dat, line 2: 3 fields where 4 belong"):
        movielens_1m_official(tmp_path)
