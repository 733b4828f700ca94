"""Kinetix's own networks over entities, with the scripts' interface: apply(params, obs) -> distribution, values."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from common.actions import Categorical
from common.arrays import product_of_columns
from common.run.arguments import UsageError, flag
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


@jax.custom_vjp
def _spread(to: jax.Array, x: jax.Array) -> jax.Array:
    """The sum of what goes to each slot: one-hot [K, N, B], [E, K, B] -> [E, N, B]."""
    return (to * x[:, :, None]).sum(1)


def _spread_backward(to: jax.Array, slope: jax.Array) -> tuple[jax.Array, jax.Array]:
    # Its natural gradient is one sum. XLA:CPU would compute the slope, which takes many operands, again for each of K.
    return jnp.zeros_like(to), jnp.moveaxis(jax.lax.map(lambda row: (row * slope).sum(1), to), 0, 1)


_spread.defvjp(lambda to, x: (_spread(to, x), to), _spread_backward)


def transformer(dtype: Any, params: Any, obs: Any) -> tuple[jax.Array, jax.Array]:
    """What Kinetix's modules compute with the options of TRANSFORMER. -> logits [B, actions], values [B].

    dtype: of the factors in the products of the hidden layers, but not of those with observations. In shapes E is the
    width, N the slots for shapes and the dummy, H the heads, D their width. The batch comes last and features come
    first, [E, N, B]: all products, the kernels' gradients too, are then of the kind that XLA:CPU is fastest at, and
    all else is vectorised over the batch.
    """
    layers, head = params["Transformer_0"], params["GeneralActorCriticRNN_0"]
    batch_last = lambda x: jnp.moveaxis(x, 0, -1)  # noqa: E731
    joined = lambda own, *names: {"kernel": jnp.concatenate([own[n]["kernel"] for n in names], axis=1)}  # noqa: E731
    column = lambda own, x: own.reshape(-1, *[1] * (x.ndim - 1))  # noqa: E731

    def dense(own: Any, x: jax.Array, dtype: Any = dtype) -> jax.Array:
        y = product_of_columns(dtype, own["kernel"], x.reshape(len(x), -1)).reshape(-1, *x.shape[1:])
        return y + column(own["bias"], x) if "bias" in own else y

    def encode(own: Any, entities: jax.Array) -> jax.Array:
        return jnp.tanh(dense(own, entities.transpose(2, 1, 0), jnp.float32))

    def norm(own: Any, x: jax.Array) -> jax.Array:
        mean = x.mean(0)
        variance = jnp.maximum((x * x).mean(0) - mean * mean, 0)
        return (x - mean) * jax.lax.rsqrt(variance + 1e-6) * column(own["scale"], x) + column(own["bias"], x)

    def gate(own: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        y = jnp.split(dense(joined(own, "Dense_0", "Dense_2", "Dense_4"), y), 3)
        reset, update = jnp.split(dense(joined(own, "Dense_1", "Dense_3"), x), 2)
        reset = jax.nn.sigmoid(y[0] + reset)
        update = jax.nn.sigmoid(y[1] + update - column(own["gating_bias"], x))
        return (1 - update) * x + update * jnp.tanh(y[2] + dense(own["Dense_5"], reset * x))

    def attend(own: Any, x: jax.Array) -> jax.Array:
        width, *heads = own["query"]["kernel"].shape
        parts = [own[name] for name in ("query", "key", "value")]
        kernel = jnp.concatenate([part["kernel"].reshape(width, -1) for part in parts], axis=1)
        bias = jnp.concatenate([part["bias"].ravel() for part in parts])
        query, key, value = dense({"kernel": kernel, "bias": bias}, x).reshape(3, *heads, *x.shape[1:])  # [H, D, N, B]
        score = (query[:, :, :, None] * key[:, :, None]).sum(1) / heads[1] ** 0.5
        weight = jax.nn.softmax(jnp.where(visible, score, jnp.finfo(jnp.float32).min), axis=2)  # [H, N, N, B]
        y = (weight[:, None] * value[:, :, None]).sum(3).reshape(-1, *x.shape[1:])
        return dense({"kernel": own["out"]["kernel"].reshape(len(y), width), "bias": own["out"]["bias"]}, y)

    def one_hot(slot: jax.Array) -> jax.Array:
        """[B, K] -> [K, N, B]; slot 0 is the dummy."""
        return (batch_last(slot)[:, None] == jnp.arange(-1, len(there) - 1)[:, None]).astype(jnp.float32)

    joints, thrusters = encode(params["Dense_2"], obs.joints), encode(params["Dense_3"], obs.thrusters)
    polygons, circles = encode(params["Dense_1"], obs.polygons), encode(params["Dense_0"], obs.circles)
    kind = lambda x, value: jnp.concatenate([x, jnp.full((1, *x.shape[1:]), value, x.dtype)])  # noqa: E731
    dummy = jnp.ones((len(polygons) + 1, 1, polygons.shape[2]), jnp.float32)
    x = jnp.concatenate([dummy, kind(polygons, 1), kind(circles, 0)], axis=1)
    there = jnp.concatenate([jnp.ones_like(dummy[0], bool), obs.polygon_mask.T, obs.circle_mask.T])  # [N, B]
    visible = jnp.pad(batch_last(obs.attention_mask), [(0, 0), (1, 0), (1, 0), (0, 0)], constant_values=True)
    heads = layers["tf_layers_0"]["attention1"]["query"]["kernel"].shape[1]
    visible = jnp.repeat(visible & there[:, None] & there, heads // len(visible), axis=0)  # [H, N, N, B]
    first, second = (one_hot(obs.joint_indexes[..., i]) for i in range(2))
    at = jnp.concatenate([first, second, one_hot(obs.thruster_indexes)])
    to = jnp.concatenate([first, one_hot(obs.thruster_indexes)])  # joints change their first shape only
    for i in range(TRANSFORMER["transformer_depth"]):
        own = layers[f"tf_layers_{i}"]
        x = gate(own["gate1"], x, jax.nn.relu(attend(own["attention1"], norm(own["ln1"], x))))
        x = gate(own["gate2"], x, jax.nn.relu(dense(own["dense1"], norm(own["ln2"], x))))
        shapes = (at * x[:, None]).sum(2)  # [E, K, B]
        *ends, thrust = jnp.split(shapes, [len(first), 2 * len(first)], axis=1)
        by_joints = dense(layers[f"joint_layers_{i}"], jnp.concatenate([*ends, joints]))
        by_thrusters = dense(layers[f"thruster_layers_{i}"], jnp.concatenate([thrust, thrusters]))
        changes = by_joints * obs.joint_mask.T, by_thrusters * obs.thruster_mask.T
        x = x + _spread(to, jnp.concatenate(changes, axis=1))
    actor = critic = (x * there).sum(1) / there.sum(0)
    depth = TRANSFORMER["actor_depth"]
    for i in range(depth):
        actor = jnp.tanh(dense(head[f"DenseAndActivation_{i}"]["Dense_0"], actor))
        critic = jnp.tanh(dense(head[f"DenseAndActivation_{depth + i}"]["Dense_0"], critic))
    return dense(head["Dense_0"], actor, jnp.float32).T, dense(head["Dense_1"], critic, jnp.float32)[0]


class ActorCritic:
    """Kinetix's feed-forward network. Entities [B, ...] -> action distribution, values [B].

    model: options of `kinetix.models.make_network_from_config`, such as those of a published checkpoint. With those of
    TRANSFORMER, `transformer` computes the same faster; compute_dtype is for it alone.
    """

    def __init__(self, suite: kinetix.Kinetix, model: dict[str, Any], compute_dtype: str = "float32"):
        self.suite = suite
        self._fast = partial(transformer, jnp.dtype(compute_dtype)) if model == TRANSFORMER else None
        self._module, self._nvec = kinetix.make_network(suite, model), suite.action_space.nvec
        self._example = lambda: jax.tree.map(lambda x: x[None], suite.start(suite.empty_level)[1])

    def init(self, key: jax.Array) -> Any:
        """Initialise. -> parameters, {"params": ...} as in a published checkpoint."""
        # Kinetix's modules also sow values, which `init` returns with the parameters.
        return {"params": self._module.init(key, None, self._inputs(self._example()))["params"]}

    def apply(self, params: Any, obs: Any) -> tuple[Categorical, jax.Array]:
        if self._fast:
            logits, value = self._fast(params["params"], obs)
            return Categorical(logits, self._nvec), value
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


def load_published(args: Any) -> tuple[ActorCritic, Any]:
    """Load the checkpoint in Kinetix's published format that --evaluate names. -> network over the entities of the
    training size, parameters."""
    where = f"--evaluate {args.evaluate}"
    default, names = type(args)(), ("network", "compute_dtype", "num_seeds", "num_devices")
    idle = [flag(name) for name in names if getattr(args, name) not in (getattr(default, name), 1)]
    if idle:
        raise UsageError(f"{where} with {', '.join(idle)}: a published checkpoint has one network; leave them out")
    params, model = kinetix.load_published(args.evaluate)
    suite = kinetix.make_entities(args.size)
    try:
        network = ActorCritic(suite, TRANSFORMER | model)
        shapes = jax.tree.map(jnp.shape, jax.eval_shape(network.init, jax.random.key(0)))
    except Exception as error:  # whatever Kinetix's code says to options that it does not know or lacks
        raise UsageError(f"{where}: its config.json describes no network ({error!r})") from None
    if jax.tree.map(jnp.shape, params) != shapes:
        raise UsageError(f"{where}: its parameters are not those of a network over entities")
    return network, jax.tree.map(jnp.asarray, params)
