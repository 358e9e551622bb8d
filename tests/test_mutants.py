"""The list of planted faults is of this tree: each text is there once, each test exists."""

import ast

from tests import mutants


def functions_of(path: str) -> set[str]:
    tree = ast.parse((mutants.ROOT / path).read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)} | {
        node.name for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef)
    }


def test_each_fault_can_be_planted_once():
    for mutant in mutants.read_mutants():
        text = (mutants.ROOT / mutant.file).read_text("utf-8")
        assert text.count(mutant.find) == 1, f"{mutant.name}: {mutant.file}"
        assert mutant.find != mutant.replace, mutant.name


def test_each_fault_has_a_name_of_its_own_and_tests_that_exist():
    listed = mutants.read_mutants()
    assert len({mutant.name for mutant in listed}) == len(listed)
    for mutant in listed:
        assert mutant.tests, mutant.name
        for test in mutant.tests:
            path, _, name = test.partition("::")
            found = functions_of(path)
            assert not name or name.split("::")[-1].split("[")[0] in found, mutant.name


def test_a_fault_that_a_test_sees_is_caught_and_another_survives(tmp_path):
    (tmp_path / "sums.py").write_text("def total(a, b):\n    return a + b\n")
    (tmp_path / "test_sums.py").write_text(
        "from sums import total\n\ndef test_total():\n    assert total(2, 2) == 4\n"
    )
    tests = ["test_sums.py::test_total"]
    difference = mutants.Mutant("difference", "sums.py", "a + b", "a - b", tests)
    product = mutants.Mutant("product", "sums.py", "a + b", "a * b", tests)
    gone = mutants.Mutant("gone", "sums.py", "a / b", "a * b", tests)
    assert mutants.planted(tmp_path, difference) == "caught"
    assert mutants.planted(tmp_path, product) == "survived"
    assert mutants.planted(tmp_path, gone) == "stale: its text occurs 0 times in sums.py"
