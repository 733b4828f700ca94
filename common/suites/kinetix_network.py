"""Kinetix's own networks over entities, with the scripts' interface: apply(params, obs) -> distribution, values."""

from typing import Any

import jax
import jax.numpy as jnp

from common.actions import Categorical
from common.run.arguments import UsageError
from common.suites import kinetix

# Options of the two networks in Kinetix's configs/.
TRANSFORMER = dict(
    actor_width=128, critic_width=128, actor_depth=5, critic_depth=5, activation="tanh", recurrent_model=False,
    num_heads=8, dropout_prob=0.0, permutation_invariant_mlp=False, transformer_depth=2, transformer_size=16,
    transformer_encoder_size=128, aggregate_mode="dummy_and_mean", full_attention_mask=False, transformer_ffn=False,
    multilayer_joint_thruster_mixing=False, joint_thruster_block_num_layers=2,
    joint_thruster_block_hidden_dim_multiplication=4,
)  # fmt: skip
PERMUTATION_INVARIANT = dict(
    permutation_invariant_mlp=True, symbolic_embedding_dim=256, encoder_size=64, separate_actor_critic=False
)
MODELS = {"transformer": TRANSFORMER, "permutation-invariant": TRANSFORMER | PERMUTATION_INVARIANT}

# Floats that they hold at once per observation, when acting and for a gradient (reported by XLA on a CPU; m estimated
# from its count of entities).
FLOATS = {
    "transformer": {"s": (8_600, 47_800), "m": (10_600, 63_000), "l": (17_700, 118_000)},
    "permutation-invariant": {"s": (3_200, 12_300), "m": (4_800, 18_000), "l": (9_600, 35_200)},
}


class ActorCritic:
    """Kinetix's feed-forward network. Entities [B, ...] -> action distribution, values [B].

    model: options of `kinetix.models.make_network_from_config`, such as those of a published checkpoint.
    """

    def __init__(self, suite: kinetix.Kinetix, model: dict[str, Any]):
        self.suite = suite
        self._module, self._nvec = kinetix.make_network(suite, model), suite.action_space.nvec
        self._example = lambda: jax.tree.map(lambda x: x[None], suite.start(suite.empty_level)[1])

    def init(self, key: jax.Array) -> Any:
        """Initialise. -> parameters, {"params": ...} as in a published checkpoint."""
        # Kinetix's modules also sow values, which `init` returns with the parameters.
        return {"params": self._module.init(key, None, self._inputs(self._example()))["params"]}

    def apply(self, params: Any, obs: Any) -> tuple[Categorical, jax.Array]:
        _, dist, value = self._module.apply(params, None, self._inputs(obs))
        logits = jnp.concatenate([each.logits[0] for each in dist.distributions], axis=-1)
        return Categorical(logits, self._nvec), value[0]

    def hidden(self, params: Any, obs: Any) -> dict[str, Any]:
        """Activations [B, width] of the dense layers after the entity embedding, for the actor and for the critic."""
        inner = lambda module, _: type(module).__name__ == "DenseAndActivation"  # noqa: E731
        _, found = self._module.apply(params, None, self._inputs(obs), capture_intermediates=inner, mutable=True)
        layers = [x[0] for x in jax.tree.leaves(found["intermediates"])]
        half = len(layers) // 2
        return {"actor": {"hidden": layers[:half]}, "critic": {"hidden": layers[half:]}}

    @staticmethod
    def _inputs(obs: Any) -> tuple[Any, jax.Array]:
        """Add the leading time axis and the episode starts (for recurrent networks) that Kinetix's networks expect."""
        obs = jax.tree.map(lambda x: x[None], obs)
        return obs, jnp.zeros(obs.polygons.shape[:2], bool)


def load_published(folder: str, size: str) -> tuple[ActorCritic, Any]:
    """Load a checkpoint in Kinetix's published format. -> network over the entities of this size, parameters."""
    params, model = kinetix.load_published(folder)
    network = ActorCritic(kinetix.make_entities(size), TRANSFORMER | model)
    if jax.tree.map(jnp.shape, params) != jax.tree.map(jnp.shape, jax.eval_shape(network.init, jax.random.key(0))):
        raise UsageError(f"--evaluate {folder}: its parameters are not those of a network over entities")
    return network, jax.tree.map(jnp.asarray, params)
