//! Convolutions over the rows of a block, for one row.

use crate::weights::ReferenceModel;
use forerun_formats::BlockConv;
use forerun_formats::checkpoint::{LayerTensor, Tensor};

/// The numbers with which a row multiplies itself and the rows before it: `[taps][hidden]`.
pub(crate) struct Kernel(Vec<Vec<f32>>);

impl Kernel {
    /// Returns the sum of the products, in ascending order of taps. `x` has the rows of the block
    /// up to this one.
    pub(crate) fn apply(&self, x: &[Vec<f32>]) -> Vec<f32> {
        let products = |(kernel, x): (&Vec<f32>, &Vec<f32>)| -> Vec<f32> {
            kernel.iter().zip(x).map(|(kernel, x)| kernel * x).collect()
        };
        let products = self.0.iter().zip(x.iter().rev()).map(products);
        let add = |sum: Vec<f32>, products: Vec<f32>| {
            sum.into_iter().zip(products).map(|(sum, product)| sum + product).collect()
        };
        products.reduce(add).unwrap_or_default()
    }
}

/// The kernels of rows before and after attention, or before and after the MLP.
pub(crate) struct Kernels {
    pub(crate) before: Vec<Kernel>,
    pub(crate) after: Vec<Kernel>,
}

impl ReferenceModel {
    /// Returns the kernels of rows with these inputs of attention, if the layer has convolutions.
    pub(crate) fn attention_convs(&self, layer: usize, inputs: &[Vec<f32>]) -> Option<Kernels> {
        let parts = [LayerTensor::AttentionConv, LayerTensor::AttentionConvProjection];
        self.kernels(layer, parts, inputs)
    }

    /// Returns the kernels of rows with these inputs of the MLP, if the layer has convolutions.
    pub(crate) fn mlp_convs(&self, layer: usize, inputs: &[Vec<f32>]) -> Option<Kernels> {
        self.kernels(layer, [LayerTensor::MlpConv, LayerTensor::MlpConvProjection], inputs)
    }

    fn kernels(
        &self,
        layer: usize,
        [base, projection]: [LayerTensor; 2],
        inputs: &[Vec<f32>],
    ) -> Option<Kernels> {
        let conv = self.architecture().layers[layer].block_conv?;
        let base = self.values(Tensor::Layer(layer, base));
        let own = |input: &Vec<f32>| self.linear(Tensor::Layer(layer, projection), input);
        let own: Vec<Vec<f32>> = inputs.iter().map(own).collect();
        let of_half = |half: usize| {
            let base = &base[half * base.len() / 2..][..base.len() / 2];
            let kernel =
                |own: &Vec<f32>| kernel(conv, base, &own[half * own.len() / 2..][..own.len() / 2]);
            own.iter().map(kernel).collect()
        };
        Some(Kernels { before: of_half(0), after: of_half(1) })
    }
}

/// Adds a row's own numbers, `[taps, groups]`, to the stored ones, `[taps, hidden]`.
fn kernel(conv: BlockConv, base: &[f32], own: &[f32]) -> Kernel {
    let (size, groups) = (base.len() / conv.taps, own.len() / conv.taps);
    let taps = base.chunks(size).zip(own.chunks(groups));
    let with_own = |(base, own): (&[f32], &[f32])| {
        let own = own.iter().flat_map(|own| std::iter::repeat_n(own, conv.group_size));
        base.iter().zip(own).map(|(base, own)| base + own).collect()
    };
    Kernel(taps.map(with_own).collect())
}
