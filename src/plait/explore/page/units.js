// Numbers as people write and read them, as units.py and speed.py have them.
(function (plait) {
  "use strict";
  const BINARY = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  const PREFIXES = ["", "k", "M", "G", "T", "P", "E"];

  // Ties go to the even digit, as Python's formatting does.
  const decimals = (digits) =>
    new Intl.NumberFormat("en-US", { maximumFractionDigits: digits, roundingMode: "halfEven" });
  const THREE = decimals(3);
  const WHOLE = decimals(0);
  const SHORT = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 3 });

  const grouped = (n) => WHOLE.format(n);

  function scaled(n, step, units) {
    let size = Number(n);
    let at = 0;
    while (Math.abs(size) >= step && at < units.length - 1) {
      size /= step;
      at += 1;
    }
    return [size, units[at]];
  }

  /** The same, in the next unit where three digits would round up to it. */
  function rounded(n, step, units) {
    const [size, unit] = scaled(n, step, units);
    const short = Number(size.toPrecision(3));
    return short < step || unit === units[units.length - 1] ? [size, unit] : [short / step, units[units.indexOf(unit) + 1]];
  }

  /** Bytes with a binary unit and at most three decimals, as the command line prints them. */
  function bytes(n) {
    const [size, unit] = scaled(n, 1024, BINARY);
    return unit === "B" ? `${grouped(n)} B` : `${THREE.format(size)} ${unit}`;
  }

  /** The same with three digits, for tables and charts. */
  function shortBytes(n) {
    const [size, unit] = scaled(n, 1024, BINARY);
    return `${size >= 1000 ? WHOLE.format(size) : SHORT.format(size)} ${unit}`;
  }

  /** A count in short form: 268M, 4.11B. */
  function count(n) {
    const [size, unit] = rounded(n, 1000, ["", "K", "M", "B", "T"]);
    return SHORT.format(size) + unit;
  }

  /** Tokens: 512, 32k, 1M (powers of two), or all digits where they are not round. */
  function tokens(n) {
    const value = BigInt(n);
    if (value >= 1048576n && value % 262144n === 0n) return `${THREE.format(Number(value) / 1048576)}M`;
    if (value >= 1024n && value % 256n === 0n && value < 1048576n) return `${THREE.format(Number(value) / 1024)}k`;
    return grouped(value);
  }

  /** An amount with a decimal prefix: 1.23 TFLOP. */
  function amount(n, unit) {
    const [size, prefix] = rounded(n, 1000, PREFIXES);
    return `${SHORT.format(size)} ${prefix}${unit}`;
  }

  const speed = (n) => (n >= 100 ? WHOLE.format(n) : SHORT.format(n));

  function seconds(n) {
    if (n < 1e-3) return `${SHORT.format(n * 1e6)} µs`;
    if (n < 1) return `${SHORT.format(n * 1e3)} ms`;
    if (n < 120) return `${SHORT.format(n)} s`;
    if (n < 7200) return `${SHORT.format(n / 60)} min`;
    return `${SHORT.format(n / 3600)} h`;
  }

  /** A decimal number times a whole one, exactly; null where the product is not whole. */
  function product(text, scale) {
    const [whole, fraction = ""] = text.replace(/[_,]/g, "").split(".");
    const numerator = BigInt(whole + fraction) * scale;
    const denominator = 10n ** BigInt(fraction.length);
    return numerator % denominator === 0n ? numerator / denominator : null;
  }

  const COUNTS = { "": 1n, k: 1024n, m: 1048576n };
  const PARAMETERS = { "": 1n, k: 10n ** 3n, m: 10n ** 6n, b: 10n ** 9n, t: 10n ** 12n };
  const sizes = (last) => {
    const found = { "": 1n, b: 1n };
    [..."kmgtpe"].forEach((letter, i) => {
      found[`${letter}b`] = 1000n ** BigInt(i + 1);
      found[`${letter}ib`] = 1024n ** BigInt(i + 1);
    });
    return Object.fromEntries(Object.entries(found).map(([unit, scale]) => [unit + (unit ? last : ""), scale]));
  };
  const BYTES = sizes("");
  const RATES = sizes("/s");
  const FLOPS = { "": 1n };
  PREFIXES.forEach((prefix, i) => {
    for (const word of ["flop/s", "flops", "flops/s"]) FLOPS[prefix.toLowerCase() + word] = 1000n ** BigInt(i);
  });

  /** A whole number from 1 to 2^60 with a unit of the table; null for anything else. */
  function parse(text, units) {
    const match = /^\s*([0-9][0-9_,]{0,24}(?:\.[0-9]{1,18})?)\s*([A-Za-z/]*)\s*$/.exec(text);
    const scale = match && units[match[2].toLowerCase()];
    const value = scale ? product(match[1], scale) : null;
    return value !== null && value >= 1n && value <= 2n ** 60n ? value : null;
  }

  /** What reads back as the same number, in the largest unit that two decimals suffice for. */
  function written(n, units) {
    const found = units.find(([, scale]) => n >= scale && (n * 100n) % scale === 0n);
    if (found === undefined) return n.toString();
    const hundredths = ((n * 100n) / found[1]).toString().padStart(3, "0");
    return `${hundredths.slice(0, -2)}.${hundredths.slice(-2)}`.replace(/\.?0+$/, "") + found[0];
  }

  const decimal = (word) => [...PREFIXES].reverse().map((prefix, i) => [prefix + word, 1000n ** BigInt(6 - i)]);
  const COUNT_UNITS = [["T", 10n ** 12n], ["B", 10n ** 9n], ["M", 10n ** 6n], ["K", 10n ** 3n]];
  const BINARY_UNITS = [["TiB", 2n ** 40n], ["GiB", 2n ** 30n], ["MiB", 2n ** 20n]];

  plait.units = {
    bytes,
    shortBytes,
    count,
    tokens,
    amount,
    speed,
    seconds,
    grouped,
    parseCount: (text) => parse(text, COUNTS),
    parseWhole: (text) => parse(text, { "": 1n }),
    parseParameters: (text) => parse(text, PARAMETERS),
    parseBytes: (text) => parse(text, BYTES),
    parseBandwidth: (text) => parse(text, RATES),
    parseFlops: (text) => parse(text, FLOPS),
    writeCount: (n) => (n % 1048576n === 0n ? `${n / 1048576n}m` : n % 1024n === 0n ? `${n / 1024n}k` : n.toString()),
    writeParameters: (n) => written(n, COUNT_UNITS),
    writeBytes: (n) => written(n, BINARY_UNITS),
    writeBandwidth: (n) => written(n, decimal("B/s")),
    writeFlops: (n) => written(n, decimal("FLOP/s")),
  };
})(globalThis.plait);
