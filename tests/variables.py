"""What launchers set in a rank's environment, as it was seen on one host and on several."""

from __future__ import annotations


def variables(text: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in text.split())


def without(env: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in env.items() if name not in names}


ARX = variables("ARX_RANK=2 ARX_WORLD_SIZE=4 ARX_LOCAL_RANK=2 ARX_LOCAL_SIZE=4 ARX_JOB_ID=run-x")
TORCHRUN = variables(
    "RANK=1 WORLD_SIZE=3 LOCAL_RANK=1 LOCAL_WORLD_SIZE=3 GROUP_RANK=0 GROUP_WORLD_SIZE=1 "
    "MASTER_ADDR=localhost MASTER_PORT=29500 TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=0"
)
PMI = variables("PMI_RANK=1 PMI_SIZE=3 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=3")
OPEN_MPI = variables(
    "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=3 "
    "OMPI_COMM_WORLD_NODE_RANK=1 PMIX_RANK=1 PMIX_NAMESPACE=prterun-host-4711@1"
)
SLURM = variables(
    "SLURM_JOB_ID=77 SLURM_STEP_ID=3 SLURM_PROCID=1 SLURM_LOCALID=1 SLURM_NODEID=0 "
    "SLURM_STEP_NUM_TASKS=3 SLURM_STEP_NUM_NODES=1 SLURM_STEP_TASKS_PER_NODE=3"
)

# The same launchers with ranks on two hosts, as they were seen there.
SECRET = {"ARX_SECRET": "5ec2e7"}
TWO_ARX = SECRET | variables(
    "ARX_RANK=3 ARX_WORLD_SIZE=4 ARX_LOCAL_RANK=1 ARX_LOCAL_SIZE=2 ARX_NODE_RANK=1 ARX_NNODES=2 ARX_MASTER=h0:29500"
)
POD = SECRET | variables("ARX_RANK=3 ARX_WORLD_SIZE=4 ARX_MASTER=train-0.train:29500")
TWO_TORCHRUN = (
    TORCHRUN | SECRET | variables("LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 GROUP_RANK=1 GROUP_WORLD_SIZE=3 MASTER_ADDR=h0")
)
TWO_PMI = PMI | {"MPI_LOCALNRANKS": "2", "PMI_HOSTNAME": "h0"}
TWO_OPEN_MPI = (
    OPEN_MPI | SECRET | variables("OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=prterun-node-a-4711@1 PMIX_HOSTNAME=h1")
)
TWO_OPEN_MPI_4 = without(TWO_OPEN_MPI, "PMIX_NAMESPACE", "PMIX_HOSTNAME") | {
    "OMPI_MCA_orte_hnp_uri": "3145728.0;tcp://127.0.0.1,192.0.2.7,10.0.0.1:41234"
}
TWO_SLURM = (
    SECRET | SLURM | variables("SLURM_STEP_NUM_NODES=2 SLURM_STEP_TASKS_PER_NODE=2,1 SLURM_STEP_NODELIST=n[07-08]")
)
BATCH = variables("SLURM_JOB_ID=77 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_NTASKS=3")
