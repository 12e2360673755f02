//! The logits of a whole sequence, without a cache.

use crate::weights::ReferenceModel;
use forerun_core::TokenId;
use forerun_lm::LayerOrder;

impl ReferenceModel {
    /// Computes the logits after every token: `tokens.len()` rows of `vocab_size`.
    #[must_use]
    pub fn logits(&self, tokens: &[TokenId]) -> Vec<Vec<f32>> {
        self.logits_in_order(tokens, LayerOrder::Sequential, 0)
    }

    /// Computes the logits as [`Self::logits`] does, with another order of layers for all tokens
    /// except the first `exact`.
    #[must_use]
    pub fn logits_in_order(
        &self,
        tokens: &[TokenId],
        order: LayerOrder<'_>,
        exact: usize,
    ) -> Vec<Vec<f32>> {
        let embed = |(position, &token)| self.embed_at(token, position);
        let embeddings: Vec<Vec<f32>> = tokens.iter().enumerate().map(embed).collect();
        let mut hidden = embeddings.clone();
        let layers = &self.architecture().layers;
        let groups: Vec<_> = (0..order.len(layers.len())).map(|group| order.group(group)).collect();
        let tokens = tokens.iter().zip(&embeddings);
        let own_inputs: Vec<Vec<f32>> =
            tokens.map(|(&token, embedding)| self.own_inputs(token, embedding)).collect();
        // The keys and values of all layers, of which later ones may use those of earlier ones.
        let mut cached: Vec<Vec<[Vec<f32>; 2]>> = Vec::new();
        // The inputs of attention: an approximate row uses the hidden state at the start of its
        // group.
        let mut inputs = hidden.clone();
        for (index, layer) in layers.iter().enumerate() {
            let starts_group = groups.iter().any(|group| group.start == index);
            let updated = if starts_group { hidden.len() } else { exact.min(hidden.len()) };
            inputs[..updated].clone_from_slice(&hidden[..updated]);
            let inputs = inputs.iter().zip(&embeddings);
            let inputs: Vec<Vec<f32>> = inputs
                .map(|(hidden, embedding)| self.attention_input(index, hidden, embedding))
                .collect();
            if let Some(mixer) = &layer.recurrent {
                let mut state = None;
                let rows = hidden.iter_mut().zip(&inputs).zip(&own_inputs);
                for ((row, input), own_inputs) in rows {
                    let mixed = self.mix(index, mixer, input, &mut state);
                    self.start_residual(index, row, input);
                    self.finish_layer(index, row, (&mixed, own_inputs));
                }
                cached.push(Vec::new());
                continue;
            }
            let keys_of = self.attention(index).keys_of;
            let own = inputs.iter().enumerate().filter(|_| keys_of.is_none());
            let own = own.map(|(position, input)| self.keys_and_values(index, input, position));
            cached.push(own.collect());
            let cached = &cached[keys_of.unwrap_or(index)];
            for (position, row) in hidden.iter_mut().enumerate() {
                let window = layer.attention.as_ref().and_then(|attention| attention.window);
                let window = window.unwrap_or(usize::MAX);
                let first = (position + 1).saturating_sub(window);
                let visible = cached[first..=position].iter();
                let visible: Vec<[&[f32]; 2]> = visible.map(|[k, v]| [&k[..], &v[..]]).collect();
                let queries = self.queries(index, &inputs[position], position);
                let attention = self.attend(index, (&inputs[position], &queries), &visible, first);
                self.start_residual(index, row, &inputs[position]);
                self.finish_layer(index, row, (&attention, &own_inputs[position]));
            }
        }
        hidden.iter().map(|row| self.head(&self.final_norm(row))).collect()
    }
}
