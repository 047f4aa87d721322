// SPDX-License-Identifier: Apache-2.0
// The header of a safetensors file as a state machine over JSON events, the checks of its entries, the writer,
// and sets of files behind one index.
#include "palimpsest/checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cctype>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>

#include "palimpsest/core/error.h"
#include "palimpsest/core/json.h"

namespace fs = std::filesystem;

namespace palimpsest::checkpoint {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

namespace {

constexpr uint64_t kLengthBytes = 8;             // the header's length stands before it
constexpr uint64_t kMaxHeaderBytes = 100000000;  // the reference reader's own limit
constexpr int kMaxDepth = 127;                   // likewise
constexpr uint64_t kDataAlignment = 64;          // of the data section of files that are written here
constexpr const char* kMetadataKey = "__metadata__";

/// A dtype of the format. Tensors of PyTorch have no 6-bit floats, and hold 4-bit floats in pairs.
struct Dtype {
  const char* name;
  uint64_t bits;
  std::optional<at::ScalarType> type;
};

const std::array<Dtype, 22> kDtypes{{
    {"BOOL", 8, at::kBool},
    {"F4", 4, at::kFloat4_e2m1fn_x2},
    {"F6_E2M3", 6, std::nullopt},
    {"F6_E3M2", 6, std::nullopt},
    {"U8", 8, at::kByte},
    {"I8", 8, at::kChar},
    {"F8_E5M2", 8, at::kFloat8_e5m2},
    {"F8_E4M3", 8, at::kFloat8_e4m3fn},
    {"F8_E8M0", 8, at::kFloat8_e8m0fnu},
    {"F8_E4M3FNUZ", 8, at::kFloat8_e4m3fnuz},
    {"F8_E5M2FNUZ", 8, at::kFloat8_e5m2fnuz},
    {"I16", 16, at::kShort},
    {"U16", 16, at::kUInt16},
    {"F16", 16, at::kHalf},
    {"BF16", 16, at::kBFloat16},
    {"I32", 32, at::kInt},
    {"U32", 32, at::kUInt32},
    {"F32", 32, at::kFloat},
    {"C64", 64, at::kComplexFloat},
    {"F64", 64, at::kDouble},
    {"I64", 64, at::kLong},
    {"U64", 64, at::kUInt64},
}};

const Dtype* find_dtype(const std::string& name) {
  const auto* found = std::find_if(kDtypes.begin(), kDtypes.end(), [&](const Dtype& d) { return d.name == name; });
  return found == kDtypes.end() ? nullptr : found;
}

/// A name from a file, fit for a message.
std::string shown(std::string_view name) { return fmt::format("\"{}\"", printable(name)); }

template <class Names>
std::string listed(const Names& names) {
  constexpr size_t kMost = 20;
  std::string text;
  size_t count = 0;
  for (const auto& name : names) {
    if (count++ == kMost) return text + fmt::format(", … ({} in all)", names.size());
    text += (text.empty() ? "" : ", ") + shown(name);
  }
  return text;
}

std::string shape_text(const std::vector<int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

/// Reads the header's JSON event by event: a tree would keep the last of two equal keys without a word, and would
/// need many times the header's memory.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  explicit HeaderReader(std::string path) : path_(std::move(path)) {}

  std::vector<TensorInfo> tensors;  // in the order of the header
  std::map<std::string, std::string> metadata;

  bool null() override {
    if (place_ == Place::kHeader && name_ == kMetadataKey) return open_metadata();  // the same as none
    return value("null");
  }
  bool boolean(bool truth) override { return value(truth ? "true" : "false"); }
  bool number_integer(number_integer_t number) override { return value(number == 0 ? "-0" : std::to_string(number)); }
  bool number_float(number_float_t, const string_t& text) override { return value(text.substr(0, 40)); }
  bool binary(binary_t&) override { return value("bytes"); }  // not in JSON

  bool number_unsigned(number_unsigned_t number) override {
    if (place_ == Place::kShape) {
      if (number > static_cast<uint64_t>(INT64_MAX))
        throw at_tensor(fmt::format("\"shape\" holds {}, more than a tensor can have", number));
      info_.shape.push_back(static_cast<int64_t>(number));
      return true;
    }
    if (place_ == Place::kOffsets) {
      if (offsets_ == 2) throw at_tensor("\"data_offsets\" must be two numbers, got more");
      (offsets_++ == 0 ? info_.begin : info_.end) = number;
      return true;
    }
    return value(std::to_string(number));
  }

  bool string(string_t& text) override {
    if (place_ == Place::kMetadata) {
      metadata[key_] = text;
      return true;
    }
    if (place_ != Place::kEntry || key_ != "dtype") return value(shown(text));
    info_.dtype = text;
    if (find_dtype(text) != nullptr) return true;
    std::vector<std::string> names(kDtypes.size());
    std::transform(kDtypes.begin(), kDtypes.end(), names.begin(), [](const Dtype& dtype) { return dtype.name; });
    std::string upper = text;
    std::transform(upper.begin(), upper.end(), upper.begin(), [](unsigned char c) { return std::toupper(c); });
    throw at_tensor("unknown dtype " + shown(text), find_dtype(upper) != nullptr
                                                        ? fmt::format("did you mean \"{}\"?", upper)
                                                        : "the format has: " + listed(names));
  }

  bool start_object(size_t) override {
    enter();
    if (place_ == Place::kOutside) return go(Place::kHeader);
    if (place_ == Place::kHeader) return name_ == kMetadataKey ? open_metadata() && go(Place::kMetadata) : open_entry();
    return open_other("an object");
  }
  bool start_array(size_t) override {
    enter();
    if (place_ == Place::kEntry && key_ == "shape") return go(Place::kShape);
    if (place_ == Place::kEntry && key_ == "data_offsets") return go(Place::kOffsets);
    return open_other("a list");
  }

  bool key(string_t& text) override {
    switch (place_) {
      case Place::kHeader:
        name_ = text;
        break;
      case Place::kEntry:
        key_ = text;
        if (is_field(text) && !fields_.insert(text).second) throw at_tensor(fmt::format("\"{}\" is given twice", text));
        break;
      case Place::kMetadata:
        key_ = text;
        break;
      default:
        break;
    }
    return true;
  }

  bool end_object() override {
    --depth_;
    if (place_ == Place::kOther) return close_other();
    if (place_ == Place::kEntry) close_entry();
    return go(place_ == Place::kHeader ? Place::kOutside : Place::kHeader);
  }
  bool end_array() override {
    --depth_;
    if (place_ == Place::kOther) return close_other();
    if (place_ == Place::kOffsets && offsets_ != 2)
      throw at_tensor(fmt::format("\"data_offsets\" must be two numbers, got {}", offsets_));
    return go(Place::kEntry);
  }

  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) override {
    std::string text = error.what();
    if (const size_t tag = text.find("] "); tag != std::string::npos) text = text.substr(tag + 2);
    throw input_error("the header is not valid JSON: " + printable(text, 300), path_);
  }

 private:
  /// Where in the header the reader stands; kOther is a value of no meaning to the format.
  enum class Place { kOutside, kHeader, kMetadata, kEntry, kShape, kOffsets, kOther };

  static bool is_field(const std::string& key) { return key == "dtype" || key == "shape" || key == "data_offsets"; }
  bool go(Place place) {
    place_ = place;
    return true;
  }
  void enter() {
    if (++depth_ > kMaxDepth)
      throw input_error(fmt::format("the header is nested deeper than {} levels", kMaxDepth), path_);
  }
  Error at_tensor(const std::string& problem, const std::string& fix = "") const {
    return input_error(problem, fmt::format("{}, tensor {}", path_, shown(name_)), fix);
  }

  /// A value that is not what the format asks for in this place, or one in a place it does not care about.
  bool value(const std::string& got) {
    switch (place_) {
      case Place::kOutside:
        throw input_error("the header must be a JSON object, got " + got, path_);
      case Place::kHeader:
        if (name_ == kMetadataKey)
          throw input_error("\"__metadata__\" must be an object of strings, got " + got, path_);
        throw at_tensor("the entry must be an object with dtype, shape and data_offsets, got " + got);
      case Place::kMetadata:
        throw input_error(fmt::format("\"__metadata__\" holds {} for {}, a string was expected", got, shown(key_)),
                          path_);
      case Place::kEntry:
        if (key_ == "dtype") throw at_tensor("\"dtype\" must be a string, got " + got);
        if (is_field(key_))
          throw at_tensor(fmt::format("\"{}\" must be a list of whole numbers >= 0, got {}", key_, got));
        return true;
      case Place::kShape:
      case Place::kOffsets:
        throw at_tensor(fmt::format("\"{}\" must hold whole numbers >= 0, got {}", key_, got));
      case Place::kOther:
        return true;
    }
    return true;
  }

  bool open_other(const std::string& what) {
    if (place_ != Place::kOther) value(what);
    ++other_depth_;
    return go(Place::kOther);
  }
  bool close_other() { return --other_depth_ == 0 ? go(Place::kEntry) : true; }

  bool open_metadata() {
    if (std::exchange(has_metadata_, true)) throw input_error("\"__metadata__\" is given twice", path_);
    return true;
  }
  bool open_entry() {
    info_ = TensorInfo{.name = name_, .dtype = "", .shape = {}};
    fields_.clear();
    offsets_ = 0;
    return go(Place::kEntry);
  }
  void close_entry() {
    for (const char* field : {"dtype", "shape", "data_offsets"}) {
      if (fields_.count(field) == 0) throw at_tensor(fmt::format("\"{}\" is missing", field));
    }
    const auto [place, is_new] = index_.emplace(name_, tensors.size());
    if (is_new) return tensors.push_back(std::move(info_));
    // The reference reader keeps the last of two entries. Equal ones can do no harm; others hide data.
    const TensorInfo& other = tensors[place->second];
    if (other.dtype != info_.dtype || other.shape != info_.shape || other.begin != info_.begin ||
        other.end != info_.end) {
      throw at_tensor("duplicate tensor name", "the file's writer is at fault: each name may stand once");
    }
  }

  std::string path_;
  Place place_ = Place::kOutside;
  int depth_ = 0, other_depth_ = 0, offsets_ = 0;
  bool has_metadata_ = false;
  std::string name_, key_;  // of the header, and of what lies in it
  TensorInfo info_;
  std::set<std::string> fields_;
  std::unordered_map<std::string, size_t> index_;
};

/// Bytes that the shape and dtype ask for.
uint64_t size_in_bytes(const TensorInfo& info, const std::string& place) {
  uint64_t bits = 1;
  const auto multiply = [&](uint64_t factor) {
    if (__builtin_mul_overflow(bits, factor, &bits)) {
      throw input_error(fmt::format("the size of shape {} in {} overflows", shape_text(info.shape), info.dtype), place);
    }
  };
  for (const int64_t size : info.shape) multiply(static_cast<uint64_t>(size));
  multiply(find_dtype(info.dtype)->bits);
  if (bits % 8 != 0) {
    throw input_error(fmt::format("shape {} of {} does not end at a whole byte", shape_text(info.shape), info.dtype),
                      place);
  }
  return bits / 8;
}

/// The tensors, sorted by their data, must cover it without holes and without overlaps.
void check_entries(const std::vector<TensorInfo>& tensors, uint64_t data_bytes, const std::string& path) {
  constexpr const char* kCutOff = "the file may be cut off: copy or download it again";
  uint64_t covered = 0;
  const TensorInfo* previous = nullptr;
  for (const TensorInfo& info : tensors) {
    const std::string place = fmt::format("{}, tensor {}", path, shown(info.name));
    const std::string offsets = fmt::format("\"data_offsets\" [{}, {}]", info.begin, info.end);
    if (info.end < info.begin) throw input_error(offsets + " end before they start", place);
    if (info.begin > covered) {
      throw input_error(fmt::format("{} leave a hole: the data before ends at {}", offsets, covered), place);
    }
    if (info.begin < covered) {
      throw input_error(fmt::format("{} overlap tensor {}, which ends at {}", offsets, shown(previous->name), covered),
                        place);
    }
    const uint64_t expected = size_in_bytes(info, place);
    if (info.bytes() != expected) {
      throw input_error(fmt::format("shape {} of {} takes {} bytes, but {} give {}", shape_text(info.shape), info.dtype,
                                    expected, offsets, info.bytes()),
                        place);
    }
    if (info.end > data_bytes) {
      throw input_error(fmt::format("the data ends at byte {}, the tensor at {}", data_bytes, info.end), place,
                        kCutOff);
    }
    covered = info.end;
    previous = &info;
  }
  if (covered != data_bytes) {
    throw input_error(fmt::format("{} bytes after the data of the last tensor", data_bytes - covered), path,
                      "the file was appended to, or its header is not its own");
  }
}

}  // namespace

std::string safetensors_dtype(at::ScalarType type) {
  for (const Dtype& dtype : kDtypes) {
    if (dtype.type == type) return dtype.name;
  }
  return "";
}

Safetensors Safetensors::open(const std::string& path) { return parse(MappedFile::open(path)); }

Safetensors Safetensors::parse(std::shared_ptr<const MappedFile> file) {
  Safetensors result;
  result.path_ = file->path();
  const std::string_view text = file->text();
  result.owner_ = std::move(file);
  result.read(text);
  return result;
}

Safetensors Safetensors::parse(std::string bytes, const std::string& name) {
  Safetensors result;
  result.path_ = name;
  const auto owner = std::make_shared<std::string>(std::move(bytes));
  result.owner_ = owner;
  result.read(*owner);
  return result;
}

void Safetensors::read(std::string_view file) {
  constexpr const char* kOther = "the file is cut off, or it is not a safetensors file";
  if (file.size() < kLengthBytes) {
    throw input_error(
        fmt::format("{} bytes are too few for a safetensors file, which starts with 8 bytes of length", file.size()),
        path_, kOther);
  }
  uint64_t length = 0;
  std::memcpy(&length, file.data(), kLengthBytes);
  if (length > kMaxHeaderBytes) {
    throw input_error(fmt::format("the header claims {} bytes, at most {} are allowed", length, kMaxHeaderBytes), path_,
                      "it is not a safetensors file, or its first 8 bytes are damaged");
  }
  if (length > file.size() - kLengthBytes) {
    throw input_error(fmt::format("the header claims {} bytes, the file has {}", length, file.size() - kLengthBytes),
                      path_, kOther);
  }
  const std::string_view header = file.substr(kLengthBytes, length);
  data_ = file.substr(kLengthBytes + length);
  if (const auto bad = invalid_utf8(header))
    throw input_error(fmt::format("the header is not valid UTF-8 at its byte {}", *bad), path_);
  // What the JSON parser would take for the end of the text, or skip.
  if (const size_t nul = header.find('\0'); nul != std::string_view::npos) {
    throw input_error(fmt::format("the header is not valid JSON: a NUL byte at its byte {}", nul), path_);
  }
  if (header.starts_with("\xEF\xBB\xBF"))
    throw input_error("the header is not valid JSON: it starts with a byte order mark", path_);

  HeaderReader reader(path_);
  Json::sax_parse(header.begin(), header.end(), &reader);
  tensors_ = std::move(reader.tensors);
  metadata_ = std::move(reader.metadata);
  std::stable_sort(tensors_.begin(), tensors_.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  check_entries(tensors_, data_.size(), path_);
  for (size_t i = 0; i < tensors_.size(); ++i) index_.emplace(tensors_[i].name, i);
}

const TensorInfo& Safetensors::info(const std::string& name) const {
  if (const auto found = index_.find(name); found != index_.end()) return tensors_[found->second];
  std::vector<std::string> names(tensors_.size());
  std::transform(tensors_.begin(), tensors_.end(), names.begin(), [](const TensorInfo& tensor) { return tensor.name; });
  const std::string nearest = nearest_name(name, names);
  throw input_error("there is no tensor " + shown(name), path_,
                    nearest.empty() ? "" : "did you mean " + shown(nearest) + "?");
}

at::Tensor Safetensors::tensor(const std::string& name) const {
  const TensorInfo& info = this->info(name);
  const std::string place = fmt::format("{}, tensor {}", path_, shown(name));
  const Dtype& dtype = *find_dtype(info.dtype);
  std::vector<int64_t> shape = info.shape;
  if (!dtype.type) {
    throw input_error(fmt::format("dtype {} cannot be loaded: PyTorch has no such type", dtype.name), place);
  }
  if (dtype.bits == 4) {
    if (shape.empty() || shape.back() % 2 != 0) {
      throw input_error(fmt::format("shape {} of F4 cannot be loaded: PyTorch holds pairs along the last dimension",
                                    shape_text(shape)),
                        place);
    }
    shape.back() /= 2;
  }
  const auto options = at::TensorOptions(*dtype.type);
  try {
    if (info.bytes() == 0) return at::empty(shape, options);
    // The map is private: writing to the view changes this process's pages, never the file.
    char* data = const_cast<char*>(data_.data()) + info.begin;
    const bool odd_bool =
        dtype.type == at::kBool && std::any_of(data, data + info.bytes(), [](char c) { return (c & ~1) != 0; });
    if (odd_bool) return at::from_blob(data, shape, at::kByte).ne(0);
    if (reinterpret_cast<uintptr_t>(data) % c10::elementSize(*dtype.type) == 0) {
      return at::from_blob(data, shape, [owner = owner_](void*) {}, options);
    }
    at::Tensor copy = at::empty(shape, options);
    std::memcpy(copy.data_ptr(), data, info.bytes());
    return copy;
  } catch (const c10::Error& error) {  // a zero-size shape whose strides overflow, say
    throw input_error(fmt::format("shape {} cannot be loaded: {}", shape_text(shape), error.what_without_backtrace()),
                      place);
  }
}

namespace {

/// A tensor with its entry, as it will stand in the file.
struct Record {
  TensorInfo info;
  const at::Tensor* tensor;
  uint64_t element_bytes;
};

TensorInfo describe(const std::string& name, const at::Tensor& tensor, const std::string& path) {
  const std::string place = fmt::format("{}, tensor {}", path, shown(name));
  if (name == kMetadataKey) throw usage_error("this name is reserved by the format", place);
  if (invalid_utf8(name)) throw usage_error("the name is not valid UTF-8", place);
  if (!tensor.defined()) throw usage_error("the tensor is not defined", place);
  if (tensor.layout() != at::kStrided || tensor.is_quantized())
    throw usage_error("only dense tensors can be saved", place, "call to_dense() or dequantize()");
  if (tensor.is_meta()) throw usage_error("the tensor is on the meta device, it has no values", place);
  TensorInfo info{.name = name, .dtype = safetensors_dtype(tensor.scalar_type()), .shape = tensor.sizes().vec()};
  if (info.dtype.empty())
    throw usage_error(fmt::format("the format has no dtype for {}", c10::toString(tensor.scalar_type())), place);
  if (tensor.scalar_type() == at::kFloat4_e2m1fn_x2) {
    if (info.shape.empty()) throw usage_error("a pair of 4-bit floats needs at least one dimension", place);
    info.shape.back() *= 2;
  }
  return info;
}

std::vector<Record> lay_out(const std::vector<std::pair<std::string, at::Tensor>>& tensors, const std::string& path) {
  std::vector<Record> records;
  std::set<std::string> names;
  for (const auto& [name, tensor] : tensors) {
    if (!names.insert(name).second)
      throw usage_error("duplicate tensor name", fmt::format("{}, tensor {}", path, shown(name)));
    records.push_back({describe(name, tensor, path), &tensor, static_cast<uint64_t>(tensor.element_size())});
  }
  std::stable_sort(records.begin(), records.end(),
                   [](const Record& a, const Record& b) { return a.element_bytes > b.element_bytes; });
  uint64_t offset = 0;
  for (Record& record : records) {
    record.info.begin = offset;
    offset = record.info.end = offset + record.tensor->nbytes();
  }
  return records;
}

/// The length and the JSON text, filled up with spaces to a multiple of kDataAlignment.
std::string header_bytes(const std::vector<Record>& records, const std::map<std::string, std::string>& metadata,
                         const std::string& path) {
  Json header = Json::object();
  if (!metadata.empty()) header[kMetadataKey] = metadata;
  std::string text = header.dump();
  text.pop_back();
  // Appended by hand: a JSON object in the order of its keys looks through all of them at each insertion.
  for (const Record& record : records) {
    const TensorInfo& info = record.info;
    text += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", text.size() > 1 ? "," : "",
                        Json(info.name).dump(), info.dtype, fmt::join(info.shape, ","), info.begin, info.end);
  }
  text += "}";
  const uint64_t whole = kLengthBytes + text.size();
  text.append((kDataAlignment - whole % kDataAlignment) % kDataAlignment, ' ');
  if (text.size() > kMaxHeaderBytes) {
    throw usage_error(fmt::format("the header takes {} bytes, readers allow {}", text.size(), kMaxHeaderBytes), path,
                      "use several files");
  }
  const uint64_t length = text.size();
  std::string bytes(reinterpret_cast<const char*>(&length), kLengthBytes);
  return bytes + text;
}

}  // namespace

void save_safetensors(const std::string& path, const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                      const std::map<std::string, std::string>& metadata) {
  for (const auto& [key, value] : metadata) {
    if (invalid_utf8(key) || invalid_utf8(value))
      throw usage_error("metadata " + shown(key) + " is not valid UTF-8", path);
  }
  const std::vector<Record> records = lay_out(tensors, path);
  const std::string header = header_bytes(records, metadata, path);
  write_file_atomically(path, [&](const AppendBytes& append) {
    append(header);
    for (const Record& record : records) {
      if (record.info.bytes() == 0) continue;
      const at::Tensor values = record.tensor->detach().resolve_conj().resolve_neg().to(at::kCPU).contiguous();
      append({static_cast<const char*>(values.const_data_ptr()), record.info.bytes()});
    }
  });
}

namespace {

/// The one command that makes a safetensors file of pickled weights; "" where there are none.
std::string how_to_convert_pickles(const fs::path& folder) {
  if (fs::exists(folder / "pytorch_model.bin")) {
    return fmt::format(
        "pytorch_model.bin is a pickle, which is never loaded; this converts it: cd '{}' && python3 -c \"import torch, "
        "safetensors.torch as s; s.save_file({{k: v.clone().contiguous() for k, v in torch.load('pytorch_model.bin', "
        "map_location='cpu', weights_only=True).items()}}, 'model.safetensors', {{'format': 'pt'}})\"",
        folder.string());
  }
  if (fs::exists(folder / "pytorch_model.bin.index.json")) {
    return fmt::format(
        "pytorch_model-*.bin are pickles, which are never loaded; this converts them: cd '{}' && python3 -c \"import "
        "glob, torch, safetensors.torch as s; s.save_file({{k: v.clone().contiguous() for f in "
        "sorted(glob.glob('pytorch_model-*.bin')) for k, v in torch.load(f, map_location='cpu', "
        "weights_only=True).items()}}, 'model.safetensors', {{'format': 'pt'}})\"",
        folder.string());
  }
  return "";
}

}  // namespace

TensorSet TensorSet::open(const std::string& folder_or_file) {
  constexpr const char* kFile = "model.safetensors";
  constexpr const char* kIndex = "model.safetensors.index.json";
  TensorSet set;
  set.path_ = folder_or_file;
  if (!fs::is_directory(folder_or_file)) {
    if (folder_or_file.ends_with(".json")) {
      set.open_index(folder_or_file);
    } else {
      set.add(Safetensors::open(folder_or_file));
    }
    return set;
  }
  const fs::path folder = folder_or_file;
  if (fs::exists(folder / kFile)) {
    set.add(Safetensors::open((folder / kFile).string()));
  } else if (fs::exists(folder / kIndex)) {
    set.open_index((folder / kIndex).string());
  } else {
    throw input_error(fmt::format("the folder has neither {} nor {}", kFile, kIndex), folder_or_file,
                      how_to_convert_pickles(folder));
  }
  return set;
}

void TensorSet::open_index(const std::string& path) {
  const Json index = read_json(path);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    throw input_error("the index has no object \"weight_map\"", path);
  }
  std::set<std::string> shards;
  for (const auto& [name, shard] : index["weight_map"].items()) {
    const std::string file = shard.is_string() ? shard.get<std::string>() : "";
    // A name with a folder in it could reach any file of the machine.
    if (file.empty() || file == ".." || file.find_first_of(std::string("/\\\0", 3)) != std::string::npos) {
      throw input_error(
          fmt::format("\"weight_map\" gives {} for {}, the name of a file beside the index was expected",
                      shown(shard.is_string() ? file : shard.dump(-1, ' ', false, Json::error_handler_t::replace)),
                      shown(name)),
          path);
    }
    shards.insert(file);
  }
  const fs::path folder = fs::path(path).parent_path();
  std::vector<std::string> missing;
  for (const auto& shard : shards) {
    if (!fs::is_regular_file(folder / shard)) missing.push_back(shard);
  }
  if (!missing.empty()) {
    throw input_error(fmt::format("{} of {} shards are missing: {}", missing.size(), shards.size(), listed(missing)),
                      path, "copy or download the missing files into the same folder");
  }
  std::vector<std::string> twice;
  for (const auto& shard : shards) {
    Safetensors file = Safetensors::open((folder / shard).string());
    for (const TensorInfo& info : file.tensors()) {
      if (const auto other = file_of_.find(info.name); other != file_of_.end()) {
        twice.push_back(fmt::format("{} in {} and {}", info.name,
                                    fs::path(files_[other->second].path()).filename().string(), shard));
      }
    }
    add(std::move(file));
  }
  if (!twice.empty())
    throw input_error(fmt::format("{} tensors stand in two shards: {}", twice.size(), listed(twice)), path);
  std::vector<std::string> absent;
  for (const auto& [name, shard] : index["weight_map"].items()) {
    const auto place = file_of_.find(name);
    if (place == file_of_.end() || fs::path(files_[place->second].path()).filename() != shard.get<std::string>()) {
      absent.push_back(fmt::format("{} in {}", name, shard.get<std::string>()));
    }
  }
  if (!absent.empty()) {
    throw input_error(
        fmt::format("{} entries of the index are not in the shard it names: {}", absent.size(), listed(absent)), path,
        "index and shards are not of the same model, or of different versions");
  }
}

void TensorSet::add(Safetensors file) {
  for (const TensorInfo& info : file.tensors()) {
    if (file_of_.emplace(info.name, files_.size()).second) names_.push_back(info.name);
  }
  files_.push_back(std::move(file));
}

const Safetensors& TensorSet::file_with(const std::string& name) const {
  if (const auto found = file_of_.find(name); found != file_of_.end()) return files_[found->second];
  const std::string nearest = nearest_name(name, names_);
  throw input_error("there is no tensor " + shown(name), path_,
                    nearest.empty() ? "" : "did you mean " + shown(nearest) + "?");
}

uint64_t TensorSet::bytes() const {
  uint64_t sum = 0;
  for (const Safetensors& file : files_) {
    for (const TensorInfo& info : file.tensors()) sum += info.bytes();
  }
  return sum;
}

std::map<std::string, std::string> TensorSet::metadata() const {
  std::map<std::string, std::string> all;
  for (const Safetensors& file : files_) all.insert(file.metadata().begin(), file.metadata().end());
  return all;
}

}  // namespace palimpsest::checkpoint
