#include "expression/sections.h"

namespace sirdar::expression {

std::vector<Section> sections_of(const Program::Tree& tree) {
  struct Reads {
    bool query = false, key = false, score = false;
  };
  std::vector<Reads> reads_of;
  std::vector<Section> sections;
  for (const Node& node : tree.nodes) {
    Reads reads;
    reads.query = node.op == Op::h || node.op == Op::q || node.op == Op::q_pos;
    reads.key = node.op == Op::k;
    reads.score = node.op == Op::score;
    for (int i = 0; i < node.num_operands; ++i) {
      const Reads& one = reads_of[node.operands[i]];
      reads.query |= one.query;
      reads.key |= one.key;
      reads.score |= one.score;
    }
    reads_of.push_back(reads);
    const bool is_pair = reads.score || (reads.query && reads.key);
    sections.push_back(is_pair ? Section::pairs : reads.key ? Section::keys : Section::lanes);
  }
  return sections;
}

std::vector<int32_t> nodes_of(const std::vector<Section>& sections, Section section) {
  std::vector<int32_t> nodes;
  for (size_t at = 0; at < sections.size(); ++at)
    if (sections[at] == section) nodes.push_back(static_cast<int32_t>(at));
  return nodes;
}

}  // namespace sirdar::expression
