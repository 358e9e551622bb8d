"""What `durable` promises is still there after the power fails."""

from pathlib import Path

from recsys.data.durable import append_line, new_directory, replace_file, replace_link
from tests.fake_disk import fake_disk


def test_a_line_is_there_once_it_is_appended(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with fake_disk(tmp_path) as disk:
        append_line(path, '{"a": 1}')
        append_line(path, '{"a": 2}')
        disk.cut_power()
    assert path.read_text() == '{"a": 1}\n{"a": 2}\n'


def test_a_file_is_the_new_one_once_it_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text("old")
    with fake_disk(tmp_path) as disk:
        replace_file(path, lambda partial: partial.write_text("new"))
        disk.cut_power()
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_points_to_the_new_target_once_it_is_replaced(tmp_path: Path) -> None:
    link = tmp_path / "current"
    link.symlink_to("old")
    with fake_disk(tmp_path) as disk:
        replace_link(link, "new")
        disk.cut_power()
    assert str(link.readlink()) == "new"
    assert list(tmp_path.iterdir()) == [link]


def test_a_new_directory_is_there_with_all_that_is_in_it(tmp_path: Path) -> None:
    with fake_disk(tmp_path) as disk:
        with new_directory(tmp_path / "bundle") as partial:
            (partial / "models").mkdir()
            (partial / "models" / "weights").write_bytes(b"weights")
        disk.cut_power()
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]
    assert (tmp_path / "bundle" / "models" / "weights").read_bytes() == b"weights"
