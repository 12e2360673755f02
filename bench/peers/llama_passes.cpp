// Measures forward passes of llama.cpp by their number of rows, as `forerun devices --model` does.
//
// Usage: llama_passes PAST ROUNDS ROWS,ROWS,… -m MODEL.gguf [llama.cpp's own options: -t, -c, -ub, -fa, …]
//
// PAST tokens are in the cache before each pass. Every row has logits, as in a verification. Prints one line
// for each number of rows: the number, and the median time in milliseconds.

#include "arg.h"
#include "common.h"
#include "llama.h"
#include "log.h"

#include <algorithm>
#include <chrono>
#include <clocale>
#include <cstdio>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

static void quiet(ggml_log_level level, const char * text, void *) {
    if (level >= GGML_LOG_LEVEL_WARN) fputs(text, stderr);
}

struct Passes {
    llama_context * context;
    int n_vocab;

    void decode(int first, int rows) {
        common_batch batch(context);
        for (int row = 0; row < rows; ++row) batch.add((first + row) * 31 % n_vocab, first + row, 0, true);
        if (llama_process(context, LLAMA_PROCESS_TYPE_DECODE, batch.get()) != 0) {
            throw std::runtime_error("llama.cpp cannot decode the batch: check -c, -b and -ub");
        }
        llama_synchronize(context);
    }

    // Returns the time of a pass in milliseconds.
    double measure(int past, int rows) {
        llama_memory_seq_rm(llama_get_memory(context), 0, past, -1);
        const auto started = std::chrono::steady_clock::now();
        decode(past, rows);
        return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - started).count();
    }
};

int main(int argc, char ** argv) {
    std::setlocale(LC_NUMERIC, "C");
    llama_log_set(quiet, nullptr);
    common_log_pause(common_log_main());
    if (argc < 5) {
        fprintf(stderr, "usage: llama_passes PAST ROUNDS ROWS,ROWS,... -m MODEL.gguf [options of llama.cpp]\n");
        return 2;
    }
    try {
        const int past = std::stoi(argv[1]), rounds = std::stoi(argv[2]);
        std::vector<int> all_rows;
        std::stringstream list(argv[3]);
        for (std::string rows; std::getline(list, rows, ',');) all_rows.push_back(std::stoi(rows));
        const int most = *std::max_element(all_rows.begin(), all_rows.end());
        argv[3] = argv[0];

        common_params params;
        if (!common_params_parse(argc - 3, argv + 3, params, LLAMA_EXAMPLE_SPECULATIVE)) return 2;
        params.n_outputs_max = params.n_outputs_max_per_seq = std::max(most, 256);
        llama_backend_init();
        common_init_result_ptr model = common_init_from_params(params);
        if (!model->context()) throw std::runtime_error("the model cannot be loaded");
        Passes passes = { model->context(), llama_vocab_n_tokens(llama_model_get_vocab(model->model())) };
        llama_memory_clear(llama_get_memory(passes.context), false);
        for (int first = 0; first < past; first += 256) passes.decode(first, std::min(256, past - first));
        for (int rows : all_rows) {
            std::vector<double> times;
            passes.measure(past, rows);
            for (int round = 0; round < rounds; ++round) times.push_back(passes.measure(past, rows));
            std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
            printf("%d %.4f\n", rows, times[rounds / 2]);
        }
    } catch (const std::exception & error) {
        fprintf(stderr, "llama_passes: %s\n", error.what());
        return 1;
    }
}
