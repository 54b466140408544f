"""TPU pods: queued resources, whose hosts are reached by ssh, and GKE with XPK."""

import shlex
import time
from collections.abc import Mapping

from lcrag.commands.launch.hosts import Host, call, remote_line, run_on, run_settings
from lcrag.errors import UserError
from lcrag.runs.cluster import LOST

FOLDER = "lcrag"  # on the hosts, in the home folder
PREPARE = f"cd {FOLDER} && source launch/environment.sh && prepare_environment tpu"
POLL_SECONDS = 20.0
GONE = ("FAILED", "SUSPENDED", "SUSPENDING", "DELETING")
NO_GCLOUD = "install the Google Cloud CLI"


class Pod:
    """A queued resource and its TPU, both called `--name`."""

    def __init__(self, settings: Mapping[str, str]):
        self._settings, self.name = settings, settings["--name"]
        place = [f"--{option}={settings[f'--{option}']}" for option in ("zone", "project") if f"--{option}" in settings]
        self._queued, self._tpu = (
            ["gcloud", "compute", "tpus", "queued-resources"],
            ["gcloud", "compute", "tpus", "tpu-vm"],
        )
        self._place = place

    def create(self) -> list[str]:
        """Returns the command that requests the TPU."""
        settings = self._settings
        kind = [f"--accelerator-type={settings['--accelerator']}", f"--runtime-version={settings['--runtime']}"]
        spot = ["--spot"] if "--spot" in settings else []
        return [*self._queued, "create", self.name, f"--node-id={self.name}", *self._place, *kind, *spot, "--quiet"]

    def state(self) -> list[str]:
        """Returns the command that prints the state of the request."""
        return [*self._queued, "describe", self.name, *self._place, "--format=value(state.state)"]

    def delete(self) -> list[str]:
        """Returns the command that deletes the TPU."""
        return [*self._queued, "delete", self.name, *self._place, "--force", "--quiet"]

    def addresses(self) -> list[str]:
        """Returns the command that prints an address of each host."""
        return [*self._tpu, "describe", self.name, *self._place, "--format=value(networkEndpoints[].ipAddress)"]

    def pack(self) -> list[str]:
        """Returns the command that packs the committed working tree."""
        return ["git", "archive", "--format=tar.gz", f"--output={self._settings['--logs']}/lcrag.tar.gz", "HEAD"]

    def copy(self) -> list[str]:
        """Returns the command that copies it to all hosts."""
        packed = f"{self._settings['--logs']}/lcrag.tar.gz"
        return [*self._tpu, "scp", packed, f"{self.name}:lcrag.tar.gz", *self._place, "--worker=all", "--quiet"]

    def install(self) -> list[str]:
        """Returns the command that unpacks and installs it on all hosts."""
        line = f"mkdir -p {FOLDER} && tar -xzf lcrag.tar.gz -C {FOLDER} && bash -c {shlex.quote(PREPARE)}"
        return [*self._tpu, "ssh", self.name, *self._place, "--worker=all", "--quiet", f"--command={line}"]

    def host(self, number: int) -> Host:
        """Returns one host; its shell line is appended to the last word."""
        words = (*self._tpu, "ssh", self.name, *self._place, f"--worker={number}", "--quiet", "--command")
        return Host(name=f"{self.name}-{number}", words=words)

    def ready(self) -> None:
        """Requests the TPU if it is not there, waits for it, and installs the working tree on a new one.

        Raises:
          UserError: a command failed, or the request was refused.
        """
        try:
            state = call(self.state(), NO_GCLOUD).strip()
        except UserError as error:
            if "NOT_FOUND" not in str(error):
                raise
            state = ""
        if state == "ACTIVE":
            return
        if state in GONE:
            call(self.delete(), NO_GCLOUD)
        if not state or state in GONE:
            call(self.create(), NO_GCLOUD)
        while (state := call(self.state(), NO_GCLOUD).strip()) != "ACTIVE":
            if state in GONE:
                raise UserError(f"the request {self.name} is {state}: {shlex.join(self.state())} says why")
            time.sleep(POLL_SECONDS)
        for words in (self.pack(), self.copy(), self.install()):
            call(words, NO_GCLOUD)


def launch_pod(settings: Mapping[str, str], words: list[str], dry_run: bool) -> None:
    """Requests a TPU slice, installs the committed working tree on its hosts, and runs the command to its end."""
    pod, grace = Pod(settings), int(settings["--grace_seconds"])
    line = remote_line(settings["--folder"] or f"~/{FOLDER}", settings["--setup"], [settings["--lcrag"], *words], grace)
    if dry_run:
        first = (pod.create(), pod.state(), pod.pack(), pod.copy(), pod.install(), pod.addresses())
        last = (pod.delete(),) if "--delete" in settings else ()
        for each in (*first, [*pod.host(0).words, line], *last):
            print(shlex.join(each))
        return
    pod.ready()
    hosts = [pod.host(number) for number, _ in enumerate(call(pod.addresses(), NO_GCLOUD).split(";"))]
    run_on(hosts, [line] * len(hosts), run_settings(settings), prepare=lambda start: pod.ready() if start else None)
    if "--delete" in settings:
        call(pod.delete(), NO_GCLOUD)
    else:
        print(f"lcrag: the TPU {pod.name} is still there, and costs money: {shlex.join(pod.delete())}")


def launch_xpk(settings: Mapping[str, str], words: list[str], dry_run: bool) -> None:
    """Submits the command as a workload of a GKE cluster made for XPK; GKE restarts it and keeps a log for each pod."""
    accelerator = settings["--accelerator"]
    is_tpu = accelerator.startswith(("v", "tpu"))
    kind = [f"--tpu-type={accelerator}", f"--num-slices={settings['--nodes']}"]
    if not is_tpu:
        kind = [f"--device-type={accelerator}", f"--num-nodes={settings['--nodes']}"]
    place = [f"--{option}={settings[f'--{option}']}" for option in ("zone", "project") if f"--{option}" in settings]
    restarts = [f"--max-restarts={settings['--restarts']}", f"--restart-on-exit-codes={LOST}"]
    grace = f"--termination-grace-period-seconds={settings['--grace_seconds']}"
    of_workload = [f"--workload={settings['--name']}", f"--cluster={settings['--cluster']}", *place, *kind]
    image, spot = f"--docker-image={settings['--image']}", ["--spot"] if "--spot" in settings else []
    program = settings["--lcrag"] if settings["--lcrag"] != ".venv/bin/lcrag" else "lcrag"
    line = f"--command={shlex.join([program, *words])}"
    command = ["xpk", "workload", "create", *of_workload, image, *restarts, grace, *spot, line]
    if dry_run:
        print(shlex.join(command))
        return
    call(command, "pip install xpk")
    print(f"lcrag: logs by pod: kubectl logs --prefix -f -l jobset.sigs.k8s.io/jobset-name={settings['--name']}")
