// Chooses the experts of a row from the router's scores. A workgroup computes a row.
//
// Order, as in the reference: an expert comes before another one if its criterion is larger, or equal and its number is
// smaller. Sums are added in ascending order of the experts; the score of a group, in the order of its best experts.
struct Parameters {
  experts: u32,
  chosen: u32, // experts of a row
  // 0: the softmax of all experts. 1: the softmax of the chosen ones. 2: sigmoids.
  weighting: u32,
  // 1: weights are divided by their sum. 2: there is a correction. 4: experts have factors.
  flags: u32,
  scale: f32,
  groups: u32, // 0 for none
  chosen_groups: u32,
  scored: u32, // experts of a group that count for its score
}
var<immediate> p: Parameters;
@group(0) @binding(0) var<storage, read> scores: array<f32>; // [rows, experts]
@group(0) @binding(1) var<storage, read> adjustments: array<f32>; // [2, experts]: corrections, then factors
@group(0) @binding(2) var<storage, read_write> choices: array<vec2<u32>>; // [rows, chosen]: an expert, and its weight's bits

// The key of minus infinity, and one that comes before all others.
const LEAST: i32 = -2139095041;
const MOST: i32 = 2147483647;

var<workgroup> weights: array<f32, MAX_EXPERTS>;
var<workgroup> criterion: array<f32, MAX_EXPERTS>;
var<workgroup> keys: array<i32, MAX_EXPERTS>;
var<workgroup> group_keys: array<i32, MAX_EXPERTS>;
var<workgroup> is_chosen: array<u32, MAX_EXPERTS>;
var<workgroup> chosen_experts: array<u32, MAX_EXPERTS>;

// An integer in the order of numbers: that of `f32::total_cmp`.
fn key_of(x: f32) -> i32 {
  let bits = bitcast<i32>(x);
  return bits ^ bitcast<i32>(bitcast<u32>(bits >> 31u) >> 1u);
}

fn comes_before(key: i32, index: u32, other_key: i32, other: u32) -> bool {
  return key > other_key || (key == other_key && index < other);
}

// Returns the sum of the best criteria of a group.
fn group_score(group: u32) -> f32 {
  let size = p.experts / p.groups;
  let first = group * size;
  var last_key = MOST;
  var last = first;
  var is_first = true;
  var sum = 0.0f;
  for (var n = 0u; n < min(p.scored, size); n += 1u) {
    var best = first + size;
    var best_key = LEAST;
    for (var e = first; e < first + size; e += 1u) {
      let is_left = is_first || comes_before(last_key, last, keys[e], e);
      if (is_left && (best == first + size || comes_before(keys[e], e, best_key, best))) {
        best = e;
        best_key = keys[e];
      }
    }
    sum = sum + criterion[best];
    last = best;
    last_key = best_key;
    is_first = false;
  }
  return sum;
}

// Hides the experts that are not in the best groups.
fn hide_other_groups(thread: u32) {
  for (var g = thread; g < p.groups; g += 64u) {
    group_keys[g] = key_of(group_score(g));
  }
  workgroupBarrier();
  let size = p.experts / p.groups;
  for (var g = thread; g < p.groups; g += 64u) {
    var rank = 0u;
    for (var other = 0u; other < p.groups; other += 1u) {
      rank += select(0u, 1u, comes_before(group_keys[other], other, group_keys[g], g));
    }
    if (rank >= p.chosen_groups) {
      for (var e = g * size; e < (g + 1u) * size; e += 1u) {
        keys[e] = LEAST;
      }
    }
  }
  workgroupBarrier();
}

// Writes the weights of the chosen experts.
fn write_choices(row: u32) {
  let at = row * p.chosen;
  if (p.weighting == 1u) {
    var peak = LOWEST;
    for (var i = 0u; i < p.chosen; i += 1u) {
      peak = max(peak, weights[chosen_experts[i]]);
    }
    var total = 0.0f;
    for (var i = 0u; i < p.chosen; i += 1u) {
      let weight = exponential(weights[chosen_experts[i]] - peak);
      weights[chosen_experts[i]] = weight;
      total = total + weight;
    }
    for (var i = 0u; i < p.chosen; i += 1u) {
      weights[chosen_experts[i]] = divide(weights[chosen_experts[i]], total);
    }
  }
  var total = 1.0f;
  if ((p.flags & 1u) != 0u) {
    total = 0.0f;
    for (var i = 0u; i < p.chosen; i += 1u) {
      total = total + weights[chosen_experts[i]];
    }
  }
  for (var i = 0u; i < p.chosen; i += 1u) {
    let expert = chosen_experts[i];
    var weight = divide(weights[expert], total) * p.scale;
    if ((p.flags & 4u) != 0u) {
      weight = weight * adjustments[p.experts + expert];
    }
    choices[at + i] = vec2<u32>(expert, bitcast<u32>(weight));
  }
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let row = group.x;
  let first = row * p.experts;
  var peak = LOWEST;
  if (p.weighting == 0u) {
    for (var e = 0u; e < p.experts; e += 1u) {
      peak = max(peak, scores[first + e]);
    }
  }
  for (var e = thread; e < p.experts; e += 64u) {
    let score = scores[first + e];
    var weight = score;
    if (p.weighting == 0u) {
      weight = exponential(score - peak);
    } else if (p.weighting == 2u) {
      weight = divide(1.0f, 1.0f + exponential(-score));
    }
    weights[e] = weight;
  }
  workgroupBarrier();
  var total = 0.0f;
  if (p.weighting == 0u) {
    for (var e = 0u; e < p.experts; e += 1u) {
      total = total + weights[e];
    }
  }
  workgroupBarrier();
  for (var e = thread; e < p.experts; e += 64u) {
    if (p.weighting == 0u) {
      weights[e] = divide(weights[e], total);
    }
    criterion[e] = weights[e];
    if ((p.flags & 2u) != 0u) {
      criterion[e] = weights[e] + adjustments[e];
    }
    keys[e] = key_of(criterion[e]);
  }
  workgroupBarrier();
  if (p.groups > 0u) {
    hide_other_groups(thread);
  }
  for (var e = thread; e < p.experts; e += 64u) {
    var rank = 0u;
    for (var other = 0u; other < p.experts; other += 1u) {
      rank += select(0u, 1u, comes_before(keys[other], other, keys[e], e));
    }
    is_chosen[e] = select(0u, 1u, rank < p.chosen);
  }
  workgroupBarrier();
  for (var e = thread; e < p.experts; e += 64u) {
    if (is_chosen[e] == 1u) {
      var slot = 0u;
      for (var other = 0u; other < e; other += 1u) {
        slot += is_chosen[other];
      }
      chosen_experts[slot] = e;
    }
  }
  workgroupBarrier();
  if (thread == 0u) {
    write_choices(row);
  }
}
