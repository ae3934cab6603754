/* Cheapest spanning trees of arcs away from a root, for all roots at once.
 *
 * Chu and Liu (1965), Edmonds ("Optimum branchings", 1967): take the cheapest arc into every node. Where such arcs close
 * a cycle, shrink it to one node; an arc into it then costs its price minus that of the arc it would replace. Nothing in
 * that asks which node the root is. So a graph is shrunk once, until one node is left; then for each root the cycles
 * around it are opened again, outermost first. Dense graphs of n nodes: n^2 to shrink, n per root to open.
 *
 * Where costs tie, trees differ in depth; planning_flatten makes one shallower, planning_recentre moves the root of a
 * pair of trees. Costs are infinite where there is no arc. */
#include "planning.h"

#include <math.h>

#define MOST_NODES INT64_C(32768) /* so that products of twice as many fit */

/* A graph that is being shrunk: (2 n, 2 n) and (2 n). */
struct shrinking {
  double *left;               /* cost beyond what was paid already */
  int32_t *source, *target;   /* both ends of the arc in the graph that was given */
  int32_t *alive, *path;
  uint8_t *on_path;
};

static int shrink(struct shrinking *x, int64_t n, const double *cost, int32_t *parent, int32_t *best_source,
                  int32_t *best_target, int64_t *made_at_last)
{
  int64_t size = 2 * n, count = n, made = n, length = 1;
  for (int64_t i = 0; i < size * size; i++)
    x->left[i] = INFINITY;
  for (int64_t v = 0; v < n; v++)
    for (int64_t u = 0; u < n; u++) {
      x->left[v * size + u] = cost[v * n + u];
      x->source[v * size + u] = (int32_t)u;
      x->target[v * size + u] = (int32_t)v;
    }
  for (int64_t v = 0; v < size; v++) {
    parent[v] = best_source[v] = best_target[v] = -1;
    x->alive[v] = (int32_t)v;
  }
  x->on_path[0] = 1; /* each node's cheapest arc comes from the next one on the path */
  while (count > 1) {
    int64_t v = x->path[length - 1], u = -1;
    double least = INFINITY;
    for (int64_t i = 0; i < count; i++)
      if (x->alive[i] != v && x->left[v * size + x->alive[i]] < least) {
        u = x->alive[i];
        least = x->left[v * size + u];
      }
    if (u < 0 || made >= size)
      return PLANNING_NO_TREE;
    best_source[v] = x->source[v * size + u];
    best_target[v] = x->target[v * size + u];
    for (int64_t i = 0; i < count; i++)
      x->left[v * size + x->alive[i]] -= least;
    if (!x->on_path[u]) {
      x->path[length++] = (int32_t)u;
      x->on_path[u] = 1;
      continue;
    }
    /* The path has closed a cycle from u on: it becomes node `made`. */
    int64_t first = length - 1, kept = 0;
    while (x->path[first] != u)
      first--;
    for (int64_t i = first; i < length; i++) {
      parent[x->path[i]] = (int32_t)made;
      x->on_path[x->path[i]] = 0;
    }
    for (int64_t i = 0; i < count; i++)
      if (parent[x->alive[i]] != made)
        x->alive[kept++] = x->alive[i];
    for (int64_t i = first; i < length; i++) {
      int64_t m = x->path[i];
      for (int64_t j = 0; j < kept; j++) {
        int64_t w = x->alive[j], into = made * size + w, from = w * size + made;
        if (x->left[m * size + w] < x->left[into]) {
          x->left[into] = x->left[m * size + w];
          x->source[into] = x->source[m * size + w];
          x->target[into] = x->target[m * size + w];
        }
        if (x->left[w * size + m] < x->left[from]) {
          x->left[from] = x->left[w * size + m];
          x->source[from] = x->source[w * size + m];
          x->target[from] = x->target[w * size + m];
        }
      }
    }
    x->alive[kept] = (int32_t)made;
    count = kept + 1;
    x->path[first] = (int32_t)made;
    x->on_path[made] = 1;
    length = first + 1;
    made++;
  }
  *made_at_last = made;
  return PLANNING_DONE;
}

int planning_shrink(int64_t n, const double *cost, int32_t *parent, int32_t *source, int32_t *target, int64_t *made)
{
  if (n < 1 || n > MOST_NODES)
    return PLANNING_BAD_INDEX;
  struct shrinking x = {
    .left = planning_zeroed(4 * n * n, sizeof(double)),
    .source = planning_zeroed(4 * n * n, sizeof(int32_t)),
    .target = planning_zeroed(4 * n * n, sizeof(int32_t)),
    .alive = planning_zeroed(2 * n, sizeof(int32_t)),
    .path = planning_zeroed(2 * n, sizeof(int32_t)),
    .on_path = planning_zeroed(2 * n, 1),
  };
  int code = PLANNING_NO_MEMORY;
  if (x.left && x.source && x.target && x.alive && x.path && x.on_path)
    code = shrink(&x, n, cost, parent, source, target, made);
  free(x.left);
  free(x.source);
  free(x.target);
  free(x.alive);
  free(x.path);
  free(x.on_path);
  return code;
}

int planning_open(int64_t n, int64_t root, int64_t made, const int32_t *parent, const int32_t *source,
                  const int32_t *target, int32_t *tree)
{
  if (n < 1 || made < n || made > 2 * n || root < 0 || root >= n)
    return PLANNING_BAD_INDEX;
  for (int64_t v = 0; v < made; v++) { /* a node comes before the one that it was shrunk into */
    int last = v == made - 1;
    if (last ? parent[v] != -1 : parent[v] <= v || parent[v] >= made)
      return PLANNING_BAD_INDEX;
    if (!last && (source[v] < 0 || source[v] >= n || target[v] < 0 || target[v] >= n))
      return PLANNING_BAD_INDEX;
  }
  uint8_t *opened = planning_zeroed(made, 1);
  if (!opened)
    return PLANNING_NO_MEMORY;
  tree[root] = -1;
  for (int64_t node = root; node >= 0; node = parent[node])
    opened[node] = 1;
  for (int64_t top = made - 1; top >= 0; top--) {
    if (opened[top])
      continue;
    tree[target[top]] = source[top];
    for (int64_t node = target[top]; node != top; node = parent[node]) {
      opened[node] = 1;
      if (parent[node] < 0)
        break;
    }
  }
  free(opened);
  return PLANNING_DONE;
}

/* depth (n): every node's arcs from the root; returns the largest, -1 where arcs lead nowhere. */
static int64_t depths(int64_t n, const int32_t *tree, int64_t *depth)
{
  int64_t deepest = 0;
  for (int64_t v = 0; v < n; v++) {
    int64_t u = v, arcs = 0;
    while (tree[u] >= 0) {
      u = tree[u];
      if (u >= n || ++arcs >= n)
        return -1;
    }
    depth[v] = arcs;
    deepest = planning_max(deepest, arcs);
  }
  return deepest;
}

static int flatten(int64_t n, int32_t *tree, const double *cost, double slack, int64_t *depth, double *limit,
                   int64_t *deepest)
{
  if (depths(n, tree, depth) < 0)
    return PLANNING_NO_TREE;
  for (int64_t v = 0; v < n; v++)
    limit[v] = tree[v] >= 0 ? cost[v * n + tree[v]] + slack : 0;
  for (int changed = 1; changed;) {
    changed = 0;
    int64_t level = depths(n, tree, depth);
    if (level < 0)
      return PLANNING_NO_TREE;
    for (; level > 1 && !changed; level--)
      for (int64_t v = 0; v < n; v++) {
        if (depth[v] != level)
          continue;
        int32_t best = tree[v];
        for (int64_t u = 0; u < n; u++) /* a shallower node is never below v, so that this stays a tree */
          if (cost[v * n + u] <= limit[v] && depth[u] < depth[best])
            best = (int32_t)u;
        changed = changed || best != tree[v];
        tree[v] = best;
      }
  }
  for (int64_t v = 0; v < n; v++)
    for (int64_t u = 0; u < n; u++)
      if (tree[v] >= 0 && depth[u] == depth[tree[v]] && cost[v * n + u] < cost[v * n + tree[v]])
        tree[v] = (int32_t)u;
  *deepest = depths(n, tree, depth);
  return *deepest < 0 ? PLANNING_NO_TREE : PLANNING_DONE;
}

int planning_flatten(int64_t n, int32_t *tree, const double *cost, double slack, int64_t *deepest)
{
  if (n < 1 || n > MOST_NODES)
    return PLANNING_BAD_INDEX;
  int64_t *depth = planning_zeroed(n, sizeof *depth);
  double *limit = planning_zeroed(n, sizeof *limit);
  int code = depth && limit ? flatten(n, tree, cost, slack, depth, limit, deepest) : PLANNING_NO_MEMORY;
  free(depth);
  free(limit);
  return code;
}

static int64_t both_depths(int64_t n, const int32_t *up, const int32_t *down, int64_t *depth)
{
  int64_t one = depths(n, up, depth), two = depths(n, down, depth);
  return one < 0 || two < 0 ? -1 : one + two;
}

static void swap_root(int64_t c, int64_t root, int32_t *up, int32_t *down)
{
  up[c] = down[c] = -1;
  up[root] = down[root] = (int32_t)c;
}

int planning_recentre(int64_t n, int64_t *root, int32_t *up, int32_t *down)
{
  if (n < 1 || n > MOST_NODES || *root < 0 || *root >= n)
    return PLANNING_BAD_INDEX;
  int64_t *depth = planning_zeroed(n, sizeof *depth);
  if (!depth)
    return PLANNING_NO_MEMORY;
  int64_t least = both_depths(n, up, down, depth);
  for (int moved = least >= 0; moved;) {
    moved = 0;
    for (int64_t c = 0; c < n && !moved; c++) {
      if (up[c] != *root || down[c] != *root)
        continue;
      swap_root(c, *root, up, down);
      int64_t now = both_depths(n, up, down, depth);
      if (now >= 0 && now < least) {
        least = now;
        *root = c;
        moved = 1;
      } else {
        swap_root(*root, c, up, down);
      }
    }
  }
  free(depth);
  return least < 0 ? PLANNING_NO_TREE : PLANNING_DONE;
}

/* ---- tree pairs at prices ---- */

struct pricing {
  double *cost, *backwards, *total; /* (ranks, ranks), [into, from]; the other way round; (ranks) */
  int64_t *way;                     /* (ranks, ranks): the cheapest, -1: none */
  int32_t *trees;                   /* (2, ranks, ranks): up and down, of every root */
  int32_t *parent, *source, *target;
};

static int grow(const struct pricing *p, int64_t ranks, const double *costs, int32_t *trees)
{
  int64_t made = 0;
  TRY(planning_shrink(ranks, costs, p->parent, p->source, p->target, &made));
  for (int64_t r = 0; r < ranks; r++) {
    int32_t *tree = trees + r * ranks;
    TRY(planning_open(ranks, r, made, p->parent, p->source, p->target, tree));
    for (int64_t v = 0; v < ranks; v++)
      if (v != r)
        p->total[r] += costs[v * ranks + tree[v]];
  }
  return PLANNING_DONE;
}

static int price(const struct pricing *p, struct priced_ways *x)
{
  int64_t ranks = x->ranks, best = 0;
  for (int64_t i = 0; i < ranks * ranks; i++) {
    p->cost[i] = INFINITY;
    p->way[i] = -1;
  }
  for (int64_t w = 0; w < x->ways; w++) {
    double paid = 0;
    for (int64_t i = 0; i < x->most; i++)
      if (x->uses[w * x->most + i] >= 0)
        paid += x->prices[x->uses[w * x->most + i]];
    int64_t arc = x->target[w] * ranks + x->source[w];
    if (paid < p->cost[arc]) {
      p->cost[arc] = paid;
      p->way[arc] = w;
    }
  }
  for (int64_t v = 0; v < ranks; v++)
    for (int64_t u = 0; u < ranks; u++)
      p->backwards[v * ranks + u] = p->cost[u * ranks + v];
  TRY(grow(p, ranks, p->backwards, p->trees));
  TRY(grow(p, ranks, p->cost, p->trees + ranks * ranks));
  for (int64_t r = 1; r < ranks; r++)
    if (p->total[r] < p->total[best])
      best = r;
  x->least = p->total[best];
  double extra = x->slack * x->least / (double)(2 * ranks - 2);
  for (int64_t i = 0; i < x->pairs; i++) {
    int64_t r = x->pairs == 1 ? best : i, hops = 0;
    int32_t *ups = p->trees + r * ranks, *downs = ups + ranks * ranks;
    TRY(planning_flatten(ranks, ups, p->backwards, extra, &hops));
    TRY(planning_flatten(ranks, downs, p->cost, extra, &hops));
    TRY(planning_recentre(ranks, &r, ups, downs));
    x->roots[i] = r;
    TRY(planning_flatten(ranks, ups, p->backwards, extra, &hops));
    x->hops[i] = hops;
    TRY(planning_flatten(ranks, downs, p->cost, extra, &hops));
    x->hops[i] += hops;
    double *load = x->load + i * x->resources;
    for (int64_t v = 0; v < x->resources; v++)
      load[v] = 0;
    for (int64_t v = 0; v < ranks; v++) {
      int64_t ways[2] = {-1, -1};
      if (v != r) {
        ways[0] = p->way[ups[v] * ranks + v];
        ways[1] = p->way[v * ranks + downs[v]];
        for (int side = 0; side < 2; side++) {
          if (ways[side] < 0)
            return PLANNING_NO_TREE;
          for (int64_t k = 0; k < x->most; k++)
            if (x->uses[ways[side] * x->most + k] >= 0)
              load[x->uses[ways[side] * x->most + k]] += 1;
        }
      }
      x->up[i * ranks + v] = ways[0];
      x->down[i * ranks + v] = ways[1];
    }
  }
  return PLANNING_DONE;
}

int planning_price_pairs(struct priced_ways *x)
{
  int64_t ranks = x->ranks;
  if (ranks < 2 || ranks > MOST_NODES || x->ways < 0 || x->most < 0 || x->resources < 0)
    return PLANNING_BAD_INDEX;
  if (x->pairs != 1 && x->pairs != ranks)
    return PLANNING_BAD_INDEX;
  for (int64_t w = 0; w < x->ways; w++)
    if (x->source[w] < 0 || x->source[w] >= ranks || x->target[w] < 0 || x->target[w] >= ranks)
      return PLANNING_BAD_INDEX;
  for (int64_t i = 0; i < x->ways * x->most; i++)
    if (x->uses[i] < -1 || x->uses[i] >= x->resources)
      return PLANNING_BAD_INDEX;
  struct pricing p = {
    .cost = planning_zeroed(ranks * ranks, sizeof(double)),
    .backwards = planning_zeroed(ranks * ranks, sizeof(double)),
    .total = planning_zeroed(ranks, sizeof(double)),
    .way = planning_zeroed(ranks * ranks, sizeof(int64_t)),
    .trees = planning_zeroed(2 * ranks * ranks, sizeof(int32_t)),
    .parent = planning_zeroed(2 * ranks, sizeof(int32_t)),
    .source = planning_zeroed(2 * ranks, sizeof(int32_t)),
    .target = planning_zeroed(2 * ranks, sizeof(int32_t)),
  };
  int code = PLANNING_NO_MEMORY;
  if (p.cost && p.backwards && p.total && p.way && p.trees && p.parent && p.source && p.target)
    code = price(&p, x);
  void *all[] = {p.cost, p.backwards, p.total, p.way, p.trees, p.parent, p.source, p.target};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    free(all[i]);
  return code;
}
