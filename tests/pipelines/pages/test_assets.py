"""The chart library's script, which a machine keeps."""

from pipelines.pages import file


def test_the_chart_library_is_bundled_once_and_again_if_the_kept_script_is_damaged(
    tmp_path, monkeypatch
):
    made = []
    monkeypatch.setenv("RECSYS_DATA_CACHE", str(tmp_path))
    monkeypatch.setattr(
        file.vl_convert, "javascript_bundle", lambda text: made.append(text) or "script"
    )
    assert file.bundle_charts() == file.bundle_charts() == b"script"
    assert len(made) == 1
    (kept,) = (tmp_path / "pages").iterdir()
    kept.write_bytes(kept.read_bytes()[:-1])
    assert file.bundle_charts() == file.bundle_charts() == b"script"
    assert len(made) == 2
    monkeypatch.setenv("RECSYS_DATA_CACHE", str(kept))
    assert file.bundle_charts() == b"script"
