// SPDX-License-Identifier: Apache-2.0
#include "palimpsest/serve/session.h"

#include <zlib.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "palimpsest/checkpoint/safetensors.h"
#include "palimpsest/core/error.h"
#include "palimpsest/core/random.h"

namespace fs = std::filesystem;

namespace palimpsest::serve {

namespace {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;
constexpr const char* kFormat = "2";  // 2: the checksum covers the metadata too
constexpr int64_t kMostKept = 1000;

int64_t bytes_of(const Moment& moment) {
  return moment.memory.bytes() + static_cast<int64_t>((moment.context.size() + moment.read.size()) * sizeof(int32_t));
}

/// Over the metadata, and names, shapes and bytes of all tensors, in their order.
std::string checksum(const NamedTensors& tensors, const std::string& model, int64_t keep) {
  uLong crc = crc32(0, nullptr, 0);
  const auto add = [&](const void* bytes, size_t size) {
    // zlib begins anew where it is given no bytes, and an empty tensor has none.
    if (size > 0) crc = crc32(crc, static_cast<const Bytef*>(bytes), static_cast<uInt>(size));
  };
  const std::string before = fmt::format("{} {}", model, keep);
  add(before.data(), before.size());
  for (const auto& [name, tensor] : tensors) {
    const std::string head = name + nn::shape_text(tensor.sizes()) + nn::dtype_name(tensor.scalar_type());
    add(head.data(), head.size());
    const at::Tensor dense = tensor.contiguous();
    add(dense.const_data_ptr(), dense.nbytes());
  }
  return fmt::format("{:08x}", crc);
}

NamedTensors tensors_of(const std::deque<Moment>& past, const Moment& now) {
  NamedTensors tensors;
  const auto add = [&](const Moment& moment, size_t back) {
    const std::string prefix = fmt::format("{}.", back);
    if (moment.memory.slots.defined())
      tensors.emplace_back(prefix + "memory", moment.memory.slots.detach().cpu().contiguous());
    tensors.emplace_back(prefix + "context", at::tensor(moment.context, at::kInt));
    if (!moment.read.empty()) tensors.emplace_back(prefix + "read", at::tensor(moment.read, at::kInt));
    tensors.emplace_back(prefix + "counts", at::tensor({moment.turns, moment.tokens}, at::kLong));
  };
  add(now, 0);
  for (size_t i = 0; i < past.size(); ++i) add(past[past.size() - 1 - i], i + 1);
  return tensors;
}

}  // namespace

void Session::advance(Moment moment) {
  past_.push_back(std::move(now_));
  while (static_cast<int64_t>(past_.size()) > keep_) past_.pop_front();
  now_ = std::move(moment);
}

void Session::rewind(int64_t n) {
  if (n < 0 || n > past()) {
    throw usage_error(fmt::format("cannot go back {} turns: {} are kept", n, past()), "",
                      past() > 0 ? fmt::format("give a number from 1 to {}", past()) : "");
  }
  for (int64_t i = 0; i < n; ++i) {
    now_ = std::move(past_.back());
    past_.pop_back();
  }
}

const Moment* Session::before(int64_t exchanges) const {
  const int64_t turns = now_.turns - 2 * exchanges;
  if (turns == now_.turns) return &now_;
  for (const Moment& moment : past_) {
    if (moment.turns == turns) return &moment;
  }
  return nullptr;
}

int64_t Session::bytes() const {
  int64_t total = bytes_of(now_);
  for (const Moment& moment : past_) total += bytes_of(moment);
  return total;
}

void Session::save(const std::string& path) const {
  const NamedTensors tensors = tensors_of(past_, now_);
  checkpoint::save_safetensors(path, tensors,
                               {{kKey, kFormat},
                                {"model", fingerprint_},
                                {"keep", std::to_string(keep_)},
                                {"moments", std::to_string(past_.size() + 1)},
                                {"checksum", checksum(tensors, fingerprint_, keep_)}});
}

void Session::clear_temporaries(const std::string& path) {
  // The folder may be anybody's, and another process may be writing: only this file's, and only of writers that run no
  // more on this machine (signal 0 asks).
  const fs::path file(path), folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  const std::string prefix = file.filename().string() + ".tmp-";
  std::error_code code;
  std::vector<fs::path> stale;
  for (const auto& entry : fs::directory_iterator(folder, code)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(prefix)) continue;
    const long writer = std::atol(name.c_str() + prefix.size());
    if (writer > 0 && ::kill(static_cast<pid_t>(writer), 0) != 0 && errno == ESRCH) stale.push_back(entry.path());
  }
  for (const auto& one : stale) fs::remove(one, code);
}

Session Session::load(const std::string& path, const std::string& fingerprint) {
  const auto file = checkpoint::Safetensors::open(path);
  const auto& metadata = file.metadata();
  const auto text = [&](const char* key) {
    const auto found = metadata.find(key);
    if (found == metadata.end()) throw input_error(fmt::format("is no session: \"{}\" is missing", key), path);
    return found->second;
  };
  const auto number = [&](const char* key, int64_t least, int64_t most) {
    const std::string digits = text(key);
    int64_t value = 0;
    const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (code != std::errc() || end != digits.data() + digits.size() || value < least || value > most)
      throw input_error(
          fmt::format("\"{}\" is \"{}\", a number from {} to {} was expected", key, printable(digits), least, most),
          path);
    return value;
  };
  if (const std::string format = text(kKey); format != kFormat) {
    throw input_error(
        fmt::format("the session has format {}, this version reads format {}", printable(format), kFormat), path,
        "use the version that wrote it, or begin a new session");
  }
  const std::string model = text("model");
  if (!fingerprint.empty() && model != fingerprint) {
    throw input_error(
        fmt::format("the session belongs to another model ({}, this one is {})", printable(model), fingerprint), path,
        "open it with the model that it was made with, or begin a new session");
  }
  Session session(model, number("keep", 0, kMostKept));
  const int64_t moments = number("moments", 1, kMostKept + 1);
  NamedTensors seen;
  std::vector<Moment> read;
  for (int64_t back = 0; back < moments; ++back) {
    Moment moment;
    const std::string prefix = fmt::format("{}.", back);
    const auto take = [&](const char* name, at::ScalarType dtype, int64_t axes) {
      at::Tensor tensor = file.tensor(prefix + name);
      if ((dtype != at::kFloat && tensor.scalar_type() != dtype) || tensor.dim() != axes)
        throw input_error(fmt::format("{}{} has another type or shape than a session's", prefix, name), path);
      seen.emplace_back(prefix + name, tensor);
      return tensor.clone();
    };
    if (file.contains(prefix + "memory")) {
      moment.memory.slots = take("memory", at::kFloat, 3);
      if (!moment.memory.slots.is_floating_point() || moment.memory.slots.size(0) != 1)
        throw input_error(fmt::format("{}memory is no memory", prefix), path);
    }
    const auto take_ids = [&](const char* name) {
      const at::Tensor ids = take(name, at::kInt, 1);
      return std::vector<int32_t>(ids.const_data_ptr<int32_t>(), ids.const_data_ptr<int32_t>() + ids.numel());
    };
    moment.context = take_ids("context");
    if (file.contains(prefix + "read")) moment.read = take_ids("read");
    const at::Tensor counts = take("counts", at::kLong, 1);
    if (counts.numel() != 2) throw input_error(fmt::format("{}counts is not two numbers", prefix), path);
    moment.turns = counts[0].item<int64_t>();
    moment.tokens = counts[1].item<int64_t>();
    read.push_back(std::move(moment));
  }
  if (checksum(seen, model, session.keep_) != text("checksum"))
    throw input_error("the checksum does not fit the contents: the file was damaged", path, "use a copy of it");
  for (const Moment& moment : read) {
    if (moment.memory.slots.defined() && !moment.memory.slots.isfinite().all().item<bool>())
      throw input_error("the memory is not finite", path, "begin a new session");
  }
  session.now_ = read.front();
  for (size_t i = read.size() - 1; i > 0; --i) session.past_.push_back(read[i]);
  return session;
}

std::string model_fingerprint(const models::Model& model) {
  uint64_t hash = 0;
  const auto add = [&](uint64_t value) { hash = mix_bits(hash ^ value); };
  const auto add_text = [&](const std::string& text) {
    for (const char c : text) add(static_cast<unsigned char>(c));
  };
  add_text(model.config_json().dump());
  for (const auto& entry : model.named_parameters()) {
    add_text(entry.key());
    const at::Tensor& value = entry.value();
    if (value.numel() == 0) continue;
    // 64 values spread over each weight: enough to tell two trainings apart, and nothing else is read.
    constexpr int64_t kSample = 64;
    const at::Tensor flat = value.detach().reshape({-1});
    const at::Tensor sample = flat.slice(0, 0, flat.numel(), std::max<int64_t>(1, flat.numel() / kSample))
                                  .to(at::kCPU, at::kDouble)
                                  .contiguous();
    for (int64_t i = 0; i < sample.numel(); ++i) {
      uint64_t bits = 0;
      std::memcpy(&bits, sample.const_data_ptr<double>() + i, sizeof(bits));
      add(bits);
    }
  }
  return fmt::format("{:016x}", hash);
}

}  // namespace palimpsest::serve
