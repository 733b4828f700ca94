"""Makes a Weights & Biases workspace that shows a plateau: return, KL, data-to-divergence ratio and entropy, over
environment steps and over updates.

    pip install -r requirements-wandb.txt
    python benchmarks/wandb_workspace.py --entity TEAM --project ppo-scaling        # prints its address

Runs appear there with --track. Group the run table by Group to see the mean of the runs of one --wandb-group.
"""

import sys

import tyro

OVER = {"environment steps": "global_step", "updates": "update"}
SECTIONS = {
    "Does it learn?": ("charts/episodic_return", "charts/solve_rate", "eval/episodic_return", "charts/SPS"),
    "How far does an update go, on how much data?": ("outer/kl", "outer/ddr", "outer/grad_norm", "outer/update_norm"),
    "Policy and critic": ("losses/entropy", "losses/clipfrac", "losses/explained_variance", "losses/value_loss"),
    "Network": ("plasticity/feature_rank", "plasticity/dormant_neurons", "plasticity/weight_norm"),
}
LOGARITHMIC = ("outer/kl", "outer/ddr")


def workspace(entity: str, project: str):
    """Builds the workspace without saving it."""
    try:
        import wandb_workspaces.reports.v2 as reports
        import wandb_workspaces.workspaces as workspaces
    except ModuleNotFoundError as error:
        sys.exit(f"wandb_workspace.py: {error.name} is not installed; pip install -r requirements-wandb.txt")

    def panel(key: str, over: str):
        title = f"{key} over {over}"
        return reports.LinePlot(title=title, x=OVER[over], y=[key], title_x=over, log_y=key in LOGARITHMIC)

    sections = [
        workspaces.Section(name=name, is_open=True, panels=[panel(key, over) for over in OVER for key in keys])
        for name, keys in SECTIONS.items()
    ]
    return workspaces.Workspace(entity=entity, project=project, name="Why it plateaus", sections=sections)


def main(entity: str, project: str = "ppo-scaling") -> None:
    """Saves the workspace and prints its address.

    Args:
        entity: Team or user on Weights & Biases.
        project: Project of that team or user.
    """
    print(workspace(entity, project).save().url)


if __name__ == "__main__":
    tyro.cli(main)
