# ---
# jupyter:
#   jupytext:
#     text_representation:
#       format_name: percent
# ---

# %% [markdown]
# # Growing graphs, and the process that grades them
#
# A generative model of graphs is hard to grade: which graphs it *should* have drawn nobody knows. Unless
# the graphs come from a process whose probabilities can be written down. The Hollywood process is one: each
# end of a new edge goes to a node in proportion to how often it was picked before.

# %%
import networkx as nx
import numpy as np
import torch
from pyro.infer import SVI

from guides import AutoMeanField
from guides.variational.orderings import BreadthFirst, UniformOrders, bound, enumerated
from zoo.evaluation.graphs import compare, describe, floors
from zoo.fitting.graphs import GraphTraining, fit_graphs, nats
from zoo.models import EdgeGraphModel, HollywoodProcess
from zoo.models.graphs.bayesian_heads import BayesianHeads, last_layers

torch.set_num_threads(1)
process = HollywoodProcess(alpha=1.0, sigma=0.7)
lengths = np.random.default_rng(0).integers(10, 40, 90).tolist()
graphs = process.sample(90, lengths, seed=1)

# %% [markdown]
# Its likelihood is exact, and so is the mean number of nodes. Equation 5.8 of the dissertation is the limit
# for many edges (with Gamma(alpha + 1) where it prints Gamma(sigma + 1)).

# %%
edges = sum(lengths[60:])
exact = -sum(process.log_prob(graph).item() for graph in graphs[60:]) / edges
print(f"the process: {exact:.3f} nats an edge")
for count in (10, 100, 1000):
    print(count, process.expected_nodes(count).round(1), process.expected_nodes_of_many(count).round(1))

# %% [markdown]
# The edge model sees graphs only. Its likelihood can at best be that of the process; how far it is from
# that is how much it has missed. With more graphs, and more passes over them, the gap closes.

# %%
model, fit = fit_graphs(graphs[:60], settings=GraphTraining(epochs=12, batch=4))
ours = nats(model, graphs[60:]).sum() / edges
print(f"the model: {ours:.3f} nats an edge, {ours - exact:.3f} above the process")
assert ours > exact - 0.05

# %% [markdown]
# Drawn graphs are compared with real ones by histograms of degrees, clustering and spectra. Two samples of
# one law differ too: the floor says by how much.

# %%
drawn = describe([graph.simple() for graph in model.sample(30, lengths[60:], seed=2)])
real = describe([graph.simple() for graph in graphs[60:]])
floor = floors(describe([graph.simple() for graph in graphs[:60]]), real)
for name, score in compare(drawn, real).items():
    print(f"{name:14} {score.value:.3f} +- {score.se:.3f}, a perfect generator {floor[name].value:.3f}")

# %% [markdown]
# Guides compose with it. One of this package fits a posterior of the last layers:

# %%
heads = BayesianHeads(model, graphs[:20])
guide = AutoMeanField(heads)
svi = SVI(heads, guide, guide.optimizer(0.03), guide.elbo())
losses = [svi.step() for _ in range(200)]
last = last_layers({name: value[0] for name, value in guide.draws(1, seed=0).items()})
print(f"bound {-np.mean(losses[-20:]):.0f} nats; one draw: {model.log_prob(graphs[:20], last).sum():.0f}")

# %% [markdown]
# And where the order of the edges is not known, it is a latent variable with a guide of its own. All orders
# of a small graph can be counted, so that its bound is graded too.

# %%
triangle = torch.tensor([(0, 1), (1, 2), (0, 2)])
with torch.no_grad():
    every, posterior, evidence = enumerated(triangle, model.log_prob_of_orders)
    for law in (UniformOrders(triangle), BreadthFirst(triangle)):
        value = bound(law, model.log_prob_of_orders, every)
        print(f"{type(law).__name__}: {value:.3f}, log p of the triangle {evidence:.3f}")
        assert value <= evidence + 1e-4

# %% [markdown]
# Graphs of your own may be networkx graphs: edges come by their attribute `time`, or as they are stored.

# %%
mine = [nx.ladder_graph(n) for n in range(3, 15)]
model, fit = fit_graphs(mine, EdgeGraphModel(sees_end=True), GraphTraining(epochs=10))
new = [graph.simple() for graph in model.sample(4, [10, 13, 16, 19])]
print([f"{len(graph)} nodes, {graph.number_of_edges()} edges" for graph in new])
