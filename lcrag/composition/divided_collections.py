"""Collections whose languages are divided over the processes of a cluster: each process opens and serves its share.

The processes search each other's collections over the HTTP API of `lcrag serve`; they exchange their addresses once,
through `jax.distributed`.
"""

import ipaddress
import json
import socket
from collections.abc import Mapping, Set

import gin
import jax

from lcrag.composition.components import configured_collections
from lcrag.episodes.agreement import check_same_everywhere, exchanged
from lcrag.errors import UserError
from lcrag.retrieval import Collections, SearchableCollections
from lcrag.retrieval.collections import collection_sizes
from lcrag.retrieval.remote import ROUTER_PATIENCE, Patience, RoutedCollections
from lcrag.retrieval.service import make_application
from lcrag.retrieval.service.server import listen, serve_on_thread
from lcrag.runs.processes import distributed_state


@gin.configurable
def divided_collections(patience: Patience = ROUTER_PATIENCE) -> SearchableCollections:
    """Opens this process's share of the languages that `load_collections` names, and searches all of them.

    Languages are assigned to processes as a whole, balanced by size. With fewer languages than processes, several
    processes open the same language and searches alternate between them. Each process serves its share on a free port.
    A single process opens all languages and serves nothing.

    Args:
      patience: Timeouts and retries of searches.

    Raises:
      UserError: the processes see different collections or encoders, or a share cannot be opened or reached.
    """
    if jax.process_count() == 1:
        return configured_collections()
    bound = gin.get_bindings("load_collections", resolve_references=False)
    if "folder" not in bound:
        return configured_collections()  # raises the error for the missing folder
    sizes = collection_sizes(bound["folder"], bound.get("languages"), bound.get("parts"))
    check_same_everywhere({"list of collections": json.dumps(sizes)})
    share = shares(sizes, jax.process_count())[jax.process_index()]
    try:
        opened = configured_collections(languages=share)
        devices = jax.tree.leaves(opened.encoder.params)[0].devices()
        check_placed({device.platform for device in devices}, jax.default_backend())
        address: bytes | Exception = _serve(opened).encode()
    except UserError as error:
        address = error
    hosts = [url.decode() for url in exchanged("opening the collections", address)]
    return RoutedCollections(hosts, patience=patience)


def shares(sizes: Mapping[str, int], processes: int) -> list[list[str]]:
    """Returns the languages that each process opens.

    The largest language is assigned first, each to the process with the fewest bytes so far. With more processes than
    languages, the remaining processes open the largest languages again.
    """
    names = sorted(sizes, key=lambda name: (-sizes[name], name))
    held: list[list[str]] = [[] for _ in range(processes)]
    for name in names:
        min(held, key=lambda own: sum(max(1, sizes[each]) for each in own)).append(name)
    for number in range(len(names), processes):
        held[number].append(names[number % len(names)])
    return held


def check_placed(encoder: Set[str], backend: str) -> None:
    """Checks that queries of other processes are encoded on a device that never waits for these processes.

    Args:
      encoder: Platforms of the devices that encode queries.
      backend: Platform of the devices that train and sample.

    Raises:
      UserError: queries are encoded on an accelerator, which collective operations of all processes would block.
    """
    if backend != "cpu" and encoder != {"cpu"}:
        raise UserError(
            "divided_collections answers other processes while its devices wait for them, but the query encoder runs on"
            f" {', '.join(sorted(encoder))}: set load_collections.devices = 'cpu'"
        )


def _serve(collections: Collections) -> str:
    """Serves collections on a thread until the process ends; returns an address that the other processes can reach."""
    coordinator, _, port = str(distributed_state().coordinator_address).rpartition(":")
    coordinator = coordinator.strip("[]")
    family, _, _, _, address = socket.getaddrinfo(coordinator, int(port), type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as towards:
        towards.connect(address)  # sends nothing
        own = towards.getsockname()[0]
    host = listening = own
    if jax.process_index() == 0 and not _is_loopback(coordinator):
        host, listening = coordinator, "::" if family == socket.AF_INET6 else "0.0.0.0"  # as the others call it
    listener = listen(listening, 0)
    serve_on_thread(make_application(collections), listener)
    return f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"
