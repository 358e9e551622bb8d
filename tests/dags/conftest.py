import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DAGS = ROOT / "dags"
AIRFLOW = Path(os.environ.get("RECSYS_AIRFLOW_VENV", ROOT / ".venv-airflow")) / "bin"


@dataclass
class Airflow:
    """An Airflow of its own, with its database in a folder."""

    home: Path
    environment: dict[str, str] = field(default_factory=dict)

    def __call__(self, program: str, *arguments: str | Path, exit_code: int | None = 0) -> str:
        """Run a program of Airflow's environment; return what it printed."""
        child = subprocess.run(
            [AIRFLOW / program, *arguments],
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self.home),
                "AIRFLOW_HOME": str(self.home / "airflow"),
                "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
                "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
                "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.home}/airflow.db",
                **self.environment,
            },
            cwd=self.home,
            capture_output=True,
            text=True,
            check=False,
        )
        output = child.stdout + child.stderr
        assert exit_code is None or child.returncode == exit_code, output[-8000:]
        return output


@pytest.fixture
def airflow(built_once: Callable[[str, Callable[[Path], None]], Path]) -> Airflow:
    """Give an Airflow whose database is migrated and which has the pool for the GPU."""
    if not (AIRFLOW / "airflow").exists():
        if "RECSYS_AIRFLOW_VENV" in os.environ:
            pytest.fail(f"no Airflow in {AIRFLOW}: make install-airflow")
        pytest.skip("needs Airflow: make install-airflow")

    def build(folder: Path) -> None:
        made = Airflow(folder)
        made("airflow", "db", "migrate")
        made("airflow", "pools", "set", "recsys_gpu", "1", "tasks that train")

    return Airflow(built_once("airflow", build))
