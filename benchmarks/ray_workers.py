"""What a batch costs that comes from an actor of Ray, on one host and from another node, beside worker processes.

    python benchmarks/ray_workers.py [GiB] [runs]

The table of 51 columns; two workers; each loader's start before the clock does. The other node is on this machine too:
its object store is another one, so that each object is copied through a socket, as over a network without its limits.
"""

import sys
from functools import partial

import ray
from data import STACK, tabular
from measure import alternate, report
from ray.cluster_utils import Cluster
from tabular import passes

from torch_dataloader_utils import RayWorkers

FORMS = {"dict": {}, "stacked": {"stack": STACK}}


def main() -> None:
    gib = float(sys.argv[1]) if len(sys.argv) > 1 else 0.5
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    folder = tabular(gib)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "resources": {"here": 9}})
    cluster.add_node(num_cpus=4, resources={"there": 9}, object_store_memory=1 << 30)
    ray.init(address=cluster.address)
    cases = {}
    for form, more in FORMS.items():
        of_form = partial(passes, folder, batch_size=8192, **more)
        cases[f"threads, {form}"] = of_form()
        cases[f"processes, {form}"] = of_form(num_workers=2, persistent_workers=True)
        for place in ("here", "there"):
            cases[f"Ray {place}, {form}"] = of_form(workers=RayWorkers(2, resources={"CPU": 1, place: 1}))
    rows = next(iter(cases.values()))()
    times = alternate(cases, runs=runs)
    report("ray_workers", times, limit="processes, dict", unit="rows", amount=rows, gib=gib, page_cache="warm")
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
