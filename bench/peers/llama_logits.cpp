// Prints llama.cpp's logits of a text, for comparison with forerun's (crates/forerun/tests/llama_logits.rs).
//
// Usage: llama_logits -m MODEL.gguf [llama.cpp's own options: -t, -c, -fa, -ctk, --no-repack, …] < TOKENS
//
// Reads token ids, separated by white space. Writes the logits after each of them as 32-bit floats.

#include "arg.h"
#include "common.h"
#include "llama.h"

#include <clocale>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <vector>

static void quiet(ggml_log_level level, const char * text, void *) {
    if (level >= GGML_LOG_LEVEL_WARN) fputs(text, stderr);
}

int main(int argc, char ** argv) {
    std::setlocale(LC_NUMERIC, "C");
    llama_log_set(quiet, nullptr);
    common_params params;
    if (!common_params_parse(argc, argv, params, LLAMA_EXAMPLE_COMMON)) return 1;
    common_init();
    llama_log_set(quiet, nullptr);
    llama_backend_init();
    auto loaded = common_init_from_params(params);
    if (!loaded || !loaded->context()) return 1;
    llama_context * context = loaded->context();
    const int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(loaded->model()));
    const std::vector<llama_token> tokens{ std::istream_iterator<llama_token>(std::cin), {} };
    llama_memory_clear(llama_get_memory(context), true);
    common_batch batch(context);
    for (size_t i = 0; i < tokens.size(); ++i) batch.add(tokens[i], (llama_pos) i, 0, true);
    if (llama_process(context, LLAMA_PROCESS_TYPE_DECODE, batch.get()) != 0) return 1;
    for (size_t i = 0; i < tokens.size(); ++i) {
        fwrite(llama_get_logits_ith(context, (int) i), sizeof(float), vocabulary, stdout);
    }
    return fflush(stdout) == 0 ? 0 : 1;
}
