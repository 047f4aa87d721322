// SPDX-License-Identifier: Apache-2.0
#include "apps/gnuplot.h"

#include <cstdio>

#include "apps/command.h"
#include "palimpsest/core/files.h"

namespace fs = std::filesystem;

namespace palimpsest::app {

std::string quoted(const std::string& text) {
  std::string safe;
  for (const char c : text) safe += c == '\'' ? std::string("''") : std::string(1, c);
  return "'" + safe + "'";
}

void draw(const fs::path& folder, const std::string& name, const std::string& body) {
  const std::pair<const char*, const char*> formats[] = {{"svg", "svg size 900,540 dynamic background 'white'"},
                                                         {"png", "png size 900,540"}};
  for (const auto& [ending, terminal] : formats) {
    const fs::path script = folder / (name + ".gnuplot");
    write_file_atomically(script.string(), fmt::format("set terminal {}\nset output {}\n{}", terminal,
                                                       quoted((folder / (name + "." + ending)).string()), body));
    const std::string command = "gnuplot '" + script.string() + "' 2>&1";
    FILE* pipe = ::popen(command.c_str(), "r");
    std::string said;
    char part[256];
    while (pipe != nullptr && std::fgets(part, sizeof(part), pipe) != nullptr) said += part;
    const int status = pipe == nullptr ? -1 : ::pclose(pipe);
    fs::remove(script);
    if (status != 0) {
      throw internal_error(fmt::format("gnuplot failed: {}", printable(said.substr(0, said.find('\n')))),
                           (folder / name).string(), "install it: apt-get install gnuplot-nox");
    }
  }
  print_line((folder / (name + ".svg")).string());
}

}  // namespace palimpsest::app
