//! Every combination of a model, types, and a way to compute counts as a model of its own.

use crate::prelude::*;

/// A model, its types, and a way to compute.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Kind<V> {
    /// The number of the model in [`models`].
    pub(crate) example: usize,
    pub(crate) types: ModelTypes,
    pub(crate) variant: V,
}

/// Returns the device's models, and one with a mix of types.
fn models<D: Device>(device: &D) -> Vec<Config> {
    let (num_hidden_layers, intermediate_size) = (1, 256);
    let mixed = Config { num_hidden_layers, intermediate_size, ..blocks_config() };
    device.offer().configs.into_iter().chain([mixed]).collect()
}

impl<V: Copy> Kind<V> {
    /// Returns a model in a type of weights, with the best variant and the default cache.
    pub(crate) fn of<D: Device<Variant = V>>(
        device: &D,
        example: usize,
        weight_type: WeightType,
    ) -> Self {
        Self { example, types: weight_type.into(), variant: device.best().variant }
    }

    /// Returns every kind. The types of caches take turns. Of the last model, a projection has two
    /// types of blocks.
    pub(crate) fn all<D: Device<Variant = V>>(device: &D) -> Vec<Self> {
        let caches = device.offer().cache_types.into_iter().map(Some);
        let caches: Vec<_> = [None].into_iter().chain(caches).collect();
        let examples = device.offer().configs.len();
        let mut kinds = Vec::new();
        for (number, weight_type) in device.offer().kinds_of_weights.into_iter().enumerate() {
            for variant in device.offer().variants {
                kinds.extend((0..examples).map(|example| {
                    let cache = caches[(number + example) % caches.len()];
                    let types = ModelTypes { cache, ..weight_type.into() };
                    Self { example, types, variant }
                }));
            }
        }
        let (types, variant) = (Mix::Q4_K_M.into(), device.best().variant);
        kinds.push(Self { example: examples, types, variant });
        kinds
    }

    /// Returns a number of kinds of every model, other ones for each model.
    pub(crate) fn sample<D: Device<Variant = V>>(device: &D, count: usize) -> Vec<Self> {
        let all = Self::all(device);
        let of_example = |example| {
            let kinds: Vec<Self> =
                all.iter().copied().filter(|kind| kind.example == example).collect();
            let count = count.min(kinds.len());
            let number = |turn: usize| (example + turn * kinds.len() / count) % kinds.len();
            (0..count).map(|turn| kinds[number(turn)]).collect::<Vec<Self>>()
        };
        (0..=device.offer().configs.len()).flat_map(of_example).collect()
    }

    fn architecture<D: Device<Variant = V>>(&self, device: &D) -> Architecture {
        models(device)[self.example].architecture()
    }

    /// Returns the model's number of layers.
    pub(crate) fn layers<D: Device<Variant = V>>(&self, device: &D) -> usize {
        self.architecture(device).layers.len()
    }

    /// Loads the model on the device and as the reference.
    pub(crate) fn models<D: Device<Variant = V>>(&self, device: &D) -> Models<D> {
        let architecture = self.architecture(device);
        let tensors = RandomTensors::new(&architecture, 5);
        Models::load(device, &architecture, &tensors, self.types, self.variant)
    }

    /// Loads the model on the device.
    pub(crate) fn weights<D: Device<Variant = V>>(&self, device: &D) -> Arc<D::Weights> {
        let architecture = self.architecture(device);
        let tensors = RandomTensors::new(&architecture, 5);
        Arc::new(device.load((&architecture, &tensors), self.types))
    }

    pub(crate) fn run(&self, threads: usize) -> Run<V> {
        Run { variant: self.variant, threads }
    }
}

/// Any kind. Half of the cases are in the first type, f32, in the best way.
pub(crate) fn any_kind<D: Device>(device: &D) -> impl Strategy<Value = Kind<D::Variant>> + use<D> {
    let all = Kind::all(device);
    let (first, best) = (Some(device.offer().kinds_of_weights[0].into()), device.best().variant);
    let is_first = |kind: &&Kind<_>| kind.types.weights == first && kind.variant == best;
    let first_type: Vec<_> = all.iter().filter(is_first).copied().collect();
    prop_oneof![prop::sample::select(first_type), prop::sample::select(all)]
}
