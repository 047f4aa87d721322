// SPDX-License-Identifier: Apache-2.0
// The one way own code runs on several threads: torch's own OpenMP runtime.
#pragma once

#include <cstdint>
#include <functional>

namespace palimpsest {

/// How many threads tensor operations and parallel_for use. Starts at OMP_NUM_THREADS where set, else
/// the number of cores.
int thread_count();
/// `--threads N`; 0 leaves things as they are. Throws a usage error for a negative number.
void set_thread_count(int threads);

/// Calls body(first, last) on disjoint ranges that cover [0, count), on torch's thread pool.
/// Compiled code cannot use `#pragma omp`: clang would load a second OpenMP runtime beside torch's libgomp,
/// so this calls GOMP_parallel of the loaded one, and runs serially where there is none. An exception thrown
/// by `body` is rethrown here, once.
void parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

}  // namespace palimpsest
