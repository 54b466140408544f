"""`lcrag launch ssh|slurm|pod|xpk [options] -- COMMAND ...`: one command on every host of a cluster."""

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

from lcrag.cli.arguments import Arguments, whole_number
from lcrag.commands.launch.hosts import Host, call, remote_line, run_on, run_settings
from lcrag.commands.launch.pods import launch_pod, launch_xpk
from lcrag.errors import UserError
from lcrag.files import file_name, is_remote
from lcrag.runs.cluster import LOST

SHARED = ("train", "sft", "evaluate")
USUAL = {
    "--name": "lcrag",
    "--folder": "",
    "--lcrag": ".venv/bin/lcrag",
    "--logs": "logs",
    "--setup": "",
    "--restarts": "20",
    "--pause_seconds": "30",
    "--grace_seconds": "120",
    "--port": "8476",
    "--nodes": "1",
    "--gpus": "0",
    "--time": "24:00:00",
    "--runtime": "v2-alpha-tpuv5-lite",
}
WHOLE = ("--restarts", "--pause_seconds", "--grace_seconds", "--port", "--nodes", "--gpus")
NEEDED = {
    "ssh": ("--hosts",),
    "slurm": (),
    "pod": ("--zone", "--accelerator"),
    "xpk": ("--cluster", "--accelerator", "--image"),
}
ABOUT = ("--name", "--folder", "--lcrag", "--logs", "--setup", "--restarts", "--grace_seconds")
TAKEN = {
    "ssh": (*ABOUT, "--hosts", "--pause_seconds", "--port"),
    "slurm": (*ABOUT, "--nodes", "--gpus", "--time", "--partition", "--account"),
    "pod": (*ABOUT, "--pause_seconds", "--zone", "--accelerator", "--runtime", "--project", "--spot", "--delete"),
    "xpk": ("--name", "--restarts", "--grace_seconds", "--cluster", "--accelerator", "--nodes", "--image", "--lcrag")
    + ("--zone", "--project", "--spot"),
}


def launch(arguments: Arguments) -> None:
    """Starts a command on the hosts of a cluster; see the functions of the kinds below.

    Raises:
      UserError: an option is wrong, or the job failed with an error that a restart cannot correct.
      SystemExit: a signal ended the job, with the status of that signal.
    """
    kind, *words = arguments.words or ("",)
    if kind not in KINDS:
        raise UserError(f"lcrag launch takes the kind of cluster: {', '.join(KINDS)}, not {kind!r}")
    given = dict(arguments.others)
    dry_run = "--dry_run" in arguments.switches
    for option in (*given, *(each for each in arguments.switches if each != "--dry_run")):
        if option not in TAKEN[kind]:
            raise UserError(f"lcrag launch {kind} has no option {option}; it takes {', '.join(TAKEN[kind])}")
    if missing := [option for option in NEEDED[kind] if option not in given]:
        raise UserError(f"lcrag launch {kind} needs {missing[0]}=VALUE")
    for option in WHOLE:
        whole_number(option, given.get(option, "0"))
    _check_command(kind, words, arguments)
    settings = {**USUAL, **given, **{switch: "yes" for switch in arguments.switches}}
    KINDS[kind](settings, words, dry_run)


def _check_command(kind: str, words: list[str], arguments: Arguments) -> None:
    if arguments.gin_files or arguments.bindings or arguments.output_dir or not words:
        raise UserError(f"write the command to run after --: lcrag launch {kind} OPTIONS -- train --gin_file=...")
    if words[0] not in SHARED:
        raise UserError(f"lcrag {words[0]} does not run on several hosts: {', '.join(SHARED)} do")
    folder = next((word.partition("=")[2] for word in words if word.startswith("--output_dir=")), "")
    if not folder:
        raise UserError(f"lcrag {words[0]} needs a folder for its results: --output_dir=FOLDER, after the --")
    if kind in ("pod", "xpk") and not is_remote(folder):
        raise UserError(f"the hosts share no disk: --output_dir must be in object storage, gs://..., not {folder}")


def launch_ssh(settings: Mapping[str, str], words: list[str], dry_run: bool) -> None:
    """Runs the command by ssh on each of `--hosts`, in `--folder` (by default the present one), shared or not."""
    names = [name for name in settings["--hosts"].split(",") if name]
    if not names:
        raise UserError("--hosts takes names of hosts, separated by commas")
    folder, grace = settings["--folder"] or str(Path.cwd()), int(settings["--grace_seconds"])
    first = names[0].rpartition("@")[2]
    joined = [f"--coordinator={first}:{settings['--port']}", f"--processes={len(names)}"]
    hosts, lines = [], []
    options = ("-o", "BatchMode=yes", "-o", "ServerAliveInterval=30")
    for number, name in enumerate(names):
        log = file_name(name if names.count(name) == 1 else f"{name}-{number}")
        hosts.append(Host(name=log, words=("ssh", *options, name)))
        command = [settings["--lcrag"], *words, *joined, f"--process={number}"]
        lines.append(remote_line(folder, settings["--setup"], command, grace))
    if dry_run:
        for host, line in zip(hosts, lines, strict=True):
            print(shlex.join((*host.words, line)))
        return
    run_on(hosts, lines, run_settings(settings))


def launch_slurm(settings: Mapping[str, str], words: list[str], dry_run: bool) -> None:
    """Writes a batch script, one task a node with all its GPUs, and submits it; it requeues itself."""
    logs = Path(settings["--logs"])
    script = slurm_script(settings, words)
    if dry_run:
        print(f"{script}\nsbatch {logs / settings['--name']}.sbatch")
        return
    logs.mkdir(parents=True, exist_ok=True)
    path = logs / f"{settings['--name']}.sbatch"
    path.write_text(script, encoding="utf-8")
    call(["sbatch", str(path)], "is SLURM's client on this machine?")


def slurm_script(settings: Mapping[str, str], words: list[str]) -> str:
    """Returns the batch script of a job."""
    name, logs, grace = settings["--name"], settings["--logs"], int(settings["--grace_seconds"])
    options = {"job-name": name, "nodes": settings["--nodes"], "ntasks-per-node": "1", "time": settings["--time"]}
    options |= {"gpus-per-node": settings["--gpus"]} if settings["--gpus"] != "0" else {}
    options |= {option: settings[f"--{option}"] for option in ("partition", "account") if f"--{option}" in settings}
    options |= {"signal": f"TERM@{grace}", "open-mode": "append", "output": f"{logs}/%x-%j.log"}
    directives = "".join(f"#SBATCH --{option}={value}\n" for option, value in options.items())
    return f"""\
#!/usr/bin/env bash
{directives}#SBATCH --requeue
cd {shlex.quote(settings["--folder"] or str(Path.cwd()))} || exit 2
{settings["--setup"] or ":"}
srun --kill-on-bad-exit=0 --open-mode=append --output={logs}/%x-%j-%N.log {shlex.join([settings["--lcrag"], *words])}
status=$?
# The time is nearly up (143), or a process was lost: the same command continues.
case $status in 143 | {LOST} | 13[4-9])
  if [ "${{SLURM_RESTART_COUNT:-0}}" -lt {settings["--restarts"]} ]; then scontrol requeue "$SLURM_JOB_ID"; fi ;;
esac
exit $status
"""


KINDS: Mapping[str, Callable[[Mapping[str, str], list[str], bool], None]] = {
    "ssh": launch_ssh,
    "slurm": launch_slurm,
    "pod": launch_pod,
    "xpk": launch_xpk,
}
