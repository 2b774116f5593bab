"""A model of all-reduce over a network, for bench/scale_collective and docs/scale.md.

The time of a message is latency + bytes * beta, and a byte that is reduced takes gamma. Ranks send and receive at the
same time. Each host has one network card.
"""
import dataclasses
import math

KIB, MIB = 2**10, 2**20

# Constants of trireme/collective/ring_engine.cc.
PIECE_BYTES = 1008 * KIB
SMALLEST_PIECE_BYTES = 256 * KIB
PIECES_TO_OVERLAP = 4
DIRECT_BYTES = MIB
DIRECT_RANKS = 4
DOUBLING_BYTES = MIB


@dataclasses.dataclass
class Network:
    name: str
    wire: float  # seconds that a small message takes from card to card
    beta: float  # seconds per byte

    # Figures of our software, measured on the machine of docs/scale.md.
    software = 170e-6  # seconds from a rank to its neighbour for a small parcel: 4 KiB between two ranks
    message = 100e-6  # seconds of a rank for each further parcel that it sends and receives at the same time
    gamma = 0.1e-9  # seconds per byte reduced
    memory = 0.065e-9  # seconds per byte that a rank moves through shared memory: 25 MiB between two ranks
    memory_latency = 3e-6  # seconds until the ranks of a host have met in shared memory: 4 KiB between two ranks

    @property
    def alpha(self):
        return self.software + self.wire


NETWORKS = [Network("10 Gbit/s", 30e-6, 8 / 10e9), Network("25 Gbit/s", 15e-6, 8 / 25e9),
            Network("100 Gbit/s", 5e-6, 8 / 100e9)]


def rounds(ranks):
    """Returns the steps of recursive doubling: those of the largest power of two, and two more for ranks beyond it."""
    steps = int(math.log2(ranks))
    return steps if 2**steps == ranks else steps + 2


def pieces(ranks, size):
    """Returns the number of pieces of a segment of our ring."""
    segment = size / ranks
    return max(math.ceil(segment / PIECE_BYTES), min(PIECES_TO_OVERLAP, int(segment // SMALLEST_PIECE_BYTES)), 1)


def direct(network, ranks, size):
    """Every rank sends everything to all others."""
    return network.alpha + (ranks - 2) * network.message + (ranks - 1) * size * (network.beta + network.gamma)


def doubling(network, ranks, size):
    """Pairs at a distance of 1, 2, 4, … exchange everything."""
    return rounds(ranks) * (network.alpha + size * (network.beta + network.gamma))


def tree(network, ranks, size):
    """A binomial tree: everything goes to rank 0, and the sum comes back."""
    return math.ceil(math.log2(ranks)) * (2 * network.alpha + size * (2 * network.beta + network.gamma))


def halving(network, ranks, size):
    """Recursive halving, and doubling for the way back. Our engine does not have it."""
    share = (ranks - 1) / ranks * size
    return 2 * rounds(ranks) * network.alpha + share * (2 * network.beta + network.gamma)


def ring(network, ranks, size):
    """Our ring: a step is as long as the card sends a segment, or as one piece needs to the neighbour and to be sent on."""
    segment = size / ranks
    piece = segment / pieces(ranks, size)
    step = max(segment * network.beta, network.alpha + piece * (network.beta + network.gamma))
    return 2 * (ranks - 1) * step


def choice(ranks, size):
    """Returns the way that our ring engine takes."""
    if ranks <= DIRECT_RANKS and (ranks - 1) * size <= DIRECT_BYTES:
        return direct
    return doubling if size <= DOUBLING_BYTES else ring


def ours(network, ranks, size):
    return choice(ranks, size)(network, ranks, size)


def hierarchy(network, ranks, size, per_host):
    """The ranks of a host add up in shared memory, the first rank of each host takes part in our ring engine, and the
    others copy the sum. A rank moves its values twice to add up, and once to copy."""
    hosts = ranks // per_host
    inner = 0 if per_host == 1 else 2 * network.memory_latency + 3 * size * network.memory
    return inner + (ours(network, hosts, size) if hosts > 1 else 0)


def sent(ranks, size):
    """Returns the parcels and the bytes that a rank of our ring engine sends for an all-reduce, for a power of two."""
    way = choice(ranks, size)
    if way is direct:
        return ranks - 1, (ranks - 1) * size
    if way is doubling:
        return rounds(ranks) + 1, rounds(ranks) * size  # The first parcel only compares the calls.
    return 2 * (ranks - 1) * pieces(ranks, size), 2 * (ranks - 1) / ranks * size
