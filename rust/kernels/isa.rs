//! Which instruction set this process uses.

use std::fmt;
use std::sync::OnceLock;

/// A set of vector instructions that the kernels are compiled for. All of them give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// The baseline of the target; no detection, no intrinsics.
    Scalar,
    /// AVX2 with F16C.
    Avx2,
    /// AVX-512 F, BW, DQ and VL, with F16C.
    Avx512,
    /// NEON, which every aarch64 machine has.
    Neon,
}

impl Isa {
    /// From the plainest to the widest.
    pub const ALL: [Isa; 4] = [Isa::Scalar, Isa::Neon, Isa::Avx2, Isa::Avx512];

    /// The widest that this machine has.
    pub fn detected() -> Isa {
        Isa::available().last().copied().unwrap_or(Isa::Scalar)
    }

    /// Those that this machine has, the plainest first.
    pub fn available() -> Vec<Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.is_available()).collect()
    }

    pub fn is_available(self) -> bool {
        match self {
            Isa::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => super::x86::has_avx2(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => super::x86::has_avx512(),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => true,
            _ => false,
        }
    }

    /// As `ARX_SIMD` spells it.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Neon => "neon",
        }
    }

    pub fn parse(name: &str) -> Option<Isa> {
        Isa::ALL.into_iter().find(|isa| isa.name() == name)
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The instruction set of this process: the one that `ARX_SIMD` asks for, else the widest. The variable is read once; an error
/// says what is wrong with it.
pub fn chosen() -> Result<Isa, String> {
    static CHOSEN: OnceLock<Result<Isa, String>> = OnceLock::new();
    CHOSEN
        .get_or_init(|| match std::env::var_os("ARX_SIMD") {
            None => Ok(Isa::detected()),
            Some(asked) => choose(&asked.to_string_lossy()),
        })
        .clone()
}

/// `chosen`, for those who come after its error was reported.
pub fn current() -> Isa {
    chosen().unwrap_or_else(|_| Isa::detected())
}

fn choose(asked: &str) -> Result<Isa, String> {
    if asked.is_empty() {
        return Ok(Isa::detected());
    }
    let names = |set: &[Isa]| set.iter().map(|isa| isa.name()).collect::<Vec<_>>().join(", ");
    match Isa::parse(asked) {
        Some(isa) if isa.is_available() => Ok(isa),
        Some(isa) => Err(format!("ARX_SIMD={isa}: this machine has only {}", names(&Isa::available()))),
        None => Err(format!("ARX_SIMD={asked:?} is none of {}", names(&Isa::ALL))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        for isa in Isa::ALL {
            assert_eq!(Isa::parse(isa.name()), Some(isa));
        }
        assert_eq!(Isa::parse("AVX2"), None);
    }

    #[test]
    fn the_variable_chooses_or_is_refused() {
        assert_eq!(choose("scalar"), Ok(Isa::Scalar));
        assert_eq!(choose(""), Ok(Isa::detected()));
        let unknown = choose("sse9").expect_err("no such set");
        assert!(unknown.contains("sse9") && unknown.contains("avx512"), "{unknown}");
        let foreign = if cfg!(target_arch = "x86_64") { "neon" } else { "avx2" };
        assert!(choose(foreign).expect_err("not here").contains("this machine has only scalar"));
    }
}
