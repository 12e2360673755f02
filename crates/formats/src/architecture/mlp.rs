//! Feed-forward layers: dense MLPs, and mixtures of experts.

/// A dense MLP: `down(activation(gate(x)) · up(x))`, or `down(activation(up(x)))` without a gate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mlp {
    /// Width of the gate.
    pub intermediate_size: usize,
    /// Whether there is a gate.
    pub gated: bool,
    /// The activation function.
    pub activation: Activation,
    /// Whether the projections have a bias.
    pub bias: bool,
}

impl Mlp {
    /// Returns the MLP of a plain Llama: a gate with SiLU, and no biases.
    #[must_use]
    pub fn gated(intermediate_size: usize) -> Self {
        Self { intermediate_size, gated: true, activation: Activation::Silu, bias: false }
    }
}

/// The activation function of an MLP.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `x · sigmoid(x)`.
    Silu,
    /// `x/2 · (1 + erf(x/√2))` (Hendrycks & Gimpel 2016).
    Gelu,
    /// GELU's approximation by a hyperbolic tangent.
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
    /// gpt-oss: with the gate at most `limit` and `up` between `-limit` and `limit`,
    /// `gate · sigmoid(1.702 · gate) · (up + 1)`.
    ClampedSwiglu {
        /// The largest value of the gate, and the largest magnitude of `up`.
        limit: f32,
    },
}

/// A mixture of experts (Shazeer et al. 2017): a router chooses some experts for each row, and adds
/// their weighted outputs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// Number of experts.
    pub n_experts: usize,
    /// The MLP of each expert.
    pub mlp: Mlp,
    /// How a row chooses its experts.
    pub router: Router,
    /// Whether the output of the dense MLP next to the experts is multiplied by the sigmoid of a
    /// projection of its input (Qwen2-MoE).
    pub shared_gate: bool,
    /// Whether the experts have RMS norms of their own next to a dense MLP: the layer adds
    /// `norm(dense(…)) + norm(experts(norm(hidden)))` (Gemma 4).
    pub own_norms: bool,
}

impl Experts {
    /// Returns experts without a gate of a dense MLP and without norms of their own.
    #[must_use]
    pub fn plain(n_experts: usize, mlp: Mlp, router: Router) -> Self {
        Self { n_experts, mlp, router, shared_gate: false, own_norms: false }
    }

    /// Returns the expected number of distinct experts that some rows choose together, if each row
    /// chooses at random and all experts are equally likely: `n · (1 − (1 − k/n)^rows)`. Rows of a
    /// text choose fewer, because they are alike.
    #[must_use]
    pub fn expected_distinct(&self, rows: usize) -> f64 {
        let (n, k) = (self.n_experts as f64, self.router.experts_per_token as f64);
        n * (1.0 - (1.0 - k / n).powf(rows as f64))
    }
}

/// How a row chooses its experts, from the scores that a projection of its hidden state gives them.
/// Equal scores are in order of the experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Router {
    /// Number of experts that a row uses.
    pub experts_per_token: usize,
    /// How scores become weights.
    pub weighting: Weighting,
    /// Whether the weights of the chosen experts are divided by their sum.
    pub normalised: bool,
    /// The factor of the weights, after they are divided.
    pub scale: f32,
    /// Whether the projection has a bias.
    pub bias: bool,
    /// Whether a stored number for each expert is added to its weight, only to choose experts
    /// (DeepSeek-V3).
    pub correction: bool,
    /// The groups of experts, if experts are chosen from the best groups only.
    pub groups: Option<ExpertGroups>,
    /// Whether the router reads `norm(hidden) / √hidden_size`, with an RMS norm of its own, rather
    /// than what the experts read (Gemma 4).
    pub own_norm: bool,
    /// Whether a stored number for each expert multiplies its weight at the end (Gemma 4).
    pub expert_scales: bool,
}

impl Router {
    /// Returns Mixtral's router: the softmax over all experts, whose weights for the chosen ones
    /// are divided by their sum.
    #[must_use]
    pub fn softmax(experts_per_token: usize) -> Self {
        Self {
            experts_per_token,
            weighting: Weighting::Softmax,
            normalised: true,
            scale: 1.0,
            bias: false,
            correction: false,
            groups: None,
            own_norm: false,
            expert_scales: false,
        }
    }
}

/// How a router's scores become weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weighting {
    /// The softmax over all experts.
    Softmax,
    /// The softmax over the chosen experts.
    SoftmaxOfChosen,
    /// The sigmoid of each score.
    Sigmoid,
}

/// Groups of consecutive experts of the same size (DeepSeek).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Number of groups. It divides the number of experts.
    pub n_groups: usize,
    /// Number of groups from which a row chooses experts.
    pub groups_per_token: usize,
    /// A group's score is the sum of so many of its best experts' weights.
    pub experts_scored: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_share_experts() {
        let of =
            |n_experts, chosen| Experts::plain(n_experts, Mlp::gated(8), Router::softmax(chosen));
        let near = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-9, "{found}");
        near(of(32, 4).expected_distinct(0), 0.0);
        near(of(32, 4).expected_distinct(1), 4.0);
        near(of(2, 2).expected_distinct(5), 2.0);
        // Of the nine choices of two rows, three have one expert and six have two.
        near(of(3, 1).expected_distinct(2), (3.0 + 6.0 * 2.0) / 9.0);
        // Two rows with two of three experts each have one in common, or both: 3 of 9 choices.
        near(of(3, 2).expected_distinct(2), (3.0 * 2.0 + 6.0 * 3.0) / 9.0);
        near(of(32, 4).expected_distinct(10_000), 32.0);
    }
}
