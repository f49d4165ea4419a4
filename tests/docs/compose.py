"""A stand-in for ``docker compose`` that runs a Compose file's services as processes.

The files of the image come from the Dockerfile's COPY lines, its environment from ENV, and Toril
from the wheel that the Dockerfile installs.  Commands, environments and health checks are those of
the Compose file.  Only what a machine without containers cannot have is replaced: names of hosts,
ports, and the places of directories.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import redis
import yaml

from tests.helpers import wait_until_sync
from tests.servers import free_port
from toril.client.embedded import server_binary

PATIENCE_S = 60
STOP_S = 30


class Image(NamedTuple):
    """What the Dockerfile makes: directories by their place in the image, and an environment."""

    places: dict[str, Path]
    env: dict[str, str]
    workdir: str

    def put(self, text: str) -> str:
        """Replace the image's directories by where they are here."""
        for place in sorted(self.places, key=len, reverse=True):
            text = re.sub(rf"(?<![\w.]){re.escape(place)}(?![\w-])", str(self.places[place]), text)
        return text


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    text = re.sub(r"\\\n\s*", "", dockerfile.read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def build(dockerfile: Path, context: Path, into: Path) -> Image:
    """Follow the Dockerfile; packages other than Toril are those of this environment."""
    places = {name: into / name.strip("/") for name in ("/venv", "/app", "/var/lib/shop")}
    places["/wheels"] = into / "wheels"
    image = Image(places, {}, "/var/lib/shop")
    for place in places.values():
        place.mkdir(parents=True)
    for word, rest in instructions(dockerfile):
        if word == "COPY" and not rest.startswith("--"):
            *sources, target = rest.split()
            for source in sources:
                found = list(context.glob(source))
                assert found, f"COPY {source}: there is no such file"
                for path in found:
                    copy = shutil.copytree if path.is_dir() else shutil.copy
                    copy(
                        path,
                        image.put(target),
                        **({"dirs_exist_ok": True} if path.is_dir() else {}),
                    )
        elif word == "RUN" and "pip install" in rest:
            (toril,) = re.findall(r'"(toril\[.*?)" ', rest)
            subprocess.run(
                f'pip install --quiet --no-deps --target {places["/venv"]} "{image.put(toril)}"',
                shell=True,
                check=True,
                env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            )
        elif word == "ENV":
            image.env.update(pair.split("=", 1) for pair in shlex.split(rest))
        elif word == "WORKDIR":
            assert rest == image.workdir
    return image


class Compose:
    """One project: ``run`` takes the words after ``docker compose``."""

    def __init__(self, desk: Path, postgres: str) -> None:
        self.desk = desk
        self.postgres = postgres
        self.ports: dict[tuple[str, str], int] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.completed: list[str] = []
        self.services: dict[str, Any] = {}
        self.image: Image

    def run(self, words: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
        flag, file, verb, *rest = words
        assert flag == "-f"
        if verb == "up":
            assert rest == ["--build", "--detach"]
            self.up(self.desk / file, env)
        elif verb == "exec":
            return self.exec(rest[0], rest[1:])
        elif verb == "down":
            self.down()
        else:
            raise AssertionError(f"docker compose {verb} is not known here")
        return subprocess.CompletedProcess(words, 0, "", "")

    def up(self, file: Path, env: dict[str, str]) -> None:
        settings = yaml.safe_load(interpolated(file.read_text(), env))
        self.services = {
            name: service
            for name, service in settings["services"].items()
            if "profiles" not in service
        }
        plan = self.services["worker"]["build"]
        context = file.parent / plan["context"]
        self.image = build(context / plan["dockerfile"], context.resolve(), self.desk / ".image")
        while waiting := [name for name in self.services if name not in self.started]:
            ready = [name for name in waiting if self.may_start(self.services[name])]
            assert ready, f"nothing lets {waiting} start"
            for name in ready:
                self.start(name, file.parent)

    @property
    def started(self) -> list[str]:
        return [*self.processes, *self.completed]

    def may_start(self, service: dict[str, Any]) -> bool:
        met = {
            "service_healthy": lambda name: name in self.started and self.is_healthy(name),
            "service_completed_successfully": lambda name: name in self.completed,
        }
        wants = service.get("depends_on", {})
        return all(met[want["condition"]](name) for name, want in wants.items())

    def start(self, name: str, folder: Path) -> None:
        service = self.services[name]
        if name == "postgres":
            self.create_database(service["environment"])
            self.completed.append(name)
            return
        if name == "valkey":
            command, cwd = self.valkey(service, folder)
        else:
            command, cwd = service["command"], self.image.places[self.image.workdir]
        with (self.desk / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                self.here(name, command), cwd=cwd, env=self.env_of(name), stdout=log, stderr=log
            )
        if service.get("restart") == "no":
            assert process.wait(PATIENCE_S) == 0, (self.desk / f"{name}.log").read_text()
            self.completed.append(name)
        else:
            self.processes[name] = process
            if "healthcheck" in service:
                wait_until_sync(
                    lambda: self.is_healthy(name), PATIENCE_S, every=0.2, message=f"{name}"
                )

    def valkey(self, service: dict[str, Any], folder: Path) -> tuple[list[str], Path]:
        """The server of the tests, with the settings that the container would mount."""
        program, settings = service["command"]
        source = dict(volume.split(":")[1::-1] for volume in service["volumes"])[settings]
        assert program == "valkey-server"
        data = self.desk / ".valkey"
        data.mkdir()
        port = str(self.port("valkey", "6379"))
        return [str(server_binary()), str(folder / source), "--port", port], data

    def create_database(self, settings: dict[str, str]) -> None:
        """What the entry point of PostgreSQL's image does with these variables."""
        user, database = settings["POSTGRES_USER"], settings["POSTGRES_DB"]
        with psycopg.connect(f"postgresql://{self.postgres}", autocommit=True) as connection:
            connection.execute(
                f"CREATE ROLE {user} LOGIN PASSWORD '{settings['POSTGRES_PASSWORD']}'"
            )
            connection.execute(f"CREATE DATABASE {database} OWNER {user}")

    def drop_database(self) -> None:
        with psycopg.connect(f"postgresql://{self.postgres}", autocommit=True) as connection:
            connection.execute("DROP DATABASE IF EXISTS shop WITH (FORCE)")
            connection.execute("DROP ROLE IF EXISTS shop")

    def is_healthy(self, name: str) -> bool:
        if name == "postgres":
            return True  # its fixture has waited
        kind, *command = self.services[name]["healthcheck"]["test"]
        assert kind == "CMD"
        if command == ["valkey-cli", "ping"]:
            with redis.Redis(port=self.port(name, "6379")) as client, suppress(redis.RedisError):
                return bool(client.ping())
            return False
        return self.exec(name, command).returncode == 0

    def exec(self, name: str, command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.here(name, command),
            cwd=self.image.places[self.image.workdir],
            env=self.env_of(name),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )

    def here(self, name: str, command: list[str]) -> list[str]:
        """The command with this machine's ports, and the program that the image has."""
        words = [
            re.sub(r"(?<=:)\d{4}(?=/)|^\d{4}$", lambda at: str(self.port(name, at[0])), word)
            for word in command
        ]
        if words[0] == "python":
            words[0] = sys.executable
        elif words[0] == "toril":
            words[:1] = [sys.executable, str(self.image.places["/venv"] / "bin" / "toril")]
        return words

    def env_of(self, name: str) -> dict[str, str]:
        """Nothing of the reader's own environment: a container does not have it either."""
        env = {**self.image.env, **self.services[name].get("environment", {})}
        env = {key: self.image.put(self.with_hosts(str(value))) for key, value in env.items()}
        env["PYTHONPATH"] += f":{self.image.places['/venv']}"
        env["PATH"] = os.environ["PATH"]
        if name == "exporter":
            env["TORIL_EXPORTER_PORT"] = str(self.port(name, "9101"))
        return env | {"COLUMNS": "200", "NO_COLOR": "1", "LANG": "C.UTF-8"}

    def with_hosts(self, value: str) -> str:
        value = value.replace("//valkey:6379", f"//127.0.0.1:{self.port('valkey', '6379')}")
        place = self.postgres.partition("?")[2]
        return re.sub(r"@postgres/(\w+)$", rf"@/\1?{place}", value)

    def port(self, service: str, port: str) -> int:
        """Containers may listen on the same port; processes of one machine may not."""
        return self.ports.setdefault((service, port), free_port())

    def published(self, url: str) -> str:
        """The URL with the port that the Compose file publishes at this machine."""
        for name, service in self.services.items():
            for mapping in service.get("ports", ()):
                host, outer, inner = mapping.split(":")
                url = url.replace(f"{host}:{outer}", f"{host}:{self.port(name, inner)}")
        return url

    def down(self) -> None:
        """SIGTERM in the order Compose uses; each has to end by itself in its time."""
        for name, process in reversed(list(self.processes.items())):
            process.terminate()
            assert process.wait(STOP_S) in (0, -signal.SIGTERM), (
                self.desk / f"{name}.log"
            ).read_text()
            del self.processes[name]
        self.drop_database()

    def code_is_as_built(self) -> bool:
        app = self.image.places["/app"]
        return {path.suffix for path in app.rglob("*")} == {".py"}

    def leave(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait(60)


def interpolated(text: str, env: dict[str, str]) -> str:
    """``${NAME:-default}`` and ``${NAME:?message}`` as Compose reads them."""

    def value(match: re.Match[str]) -> str:
        name, kind, rest = match.groups()
        assert name in env or kind == ":-", f"{name}: {rest}"
        return env.get(name, rest)

    return re.sub(r"\$\{(\w+)(:-|:\?)([^}]*)\}", value, text)
