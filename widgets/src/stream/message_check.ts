/** Checks messages against the schema of the protocol, and reads their buffers. */

import { FIELDS, type Received } from './protocol.js';

export type Buffer = ArrayBuffer | ArrayBufferView;

/** A message that is not of the protocol's form. */
export class WireError extends Error {
  override name = 'WireError';
}

/**
 * A value as this type of the protocol. Fields that the type does not have are let through.
 *
 * @throws WireError where a field is missing or of another type
 */
export function decode<K extends keyof Received>(type: K, value: unknown): Received[K] {
  check(type, value, type);
  return value as Received[K];
}

/** @param form - `number`, a type's name, …; then `[]` for a list, `{}` for a map, `?` if it may be null */
function check(form: string, value: unknown, place: string): void {
  const fields = FIELDS[form];
  if (form.endsWith('?')) {
    if (value !== null) {
      check(form.slice(0, -1), value, place);
    }
  } else if (form.endsWith('[]')) {
    if (!Array.isArray(value)) {
      throw new WireError(`${place} is not a list.`);
    }
    value.forEach(entry => check(form.slice(0, -2), entry, place));
  } else if (form.endsWith('{}')) {
    const inner = form.slice(0, -2);
    Object.values(object(value, place)).forEach(entry => check(inner, entry, place));
  } else if (fields !== undefined) {
    const json = object(value, place);
    for (const field of fields.split(' ')) {
      const [name = '', inner = ''] = field.split(':');
      const key = name.replace('?', '');
      if (key === name || json[key] !== undefined) {
        check(inner, json[key], `${form}: ${key}`);
      }
    }
  } else if (form !== 'unknown' && typeof value !== form) {
    throw new WireError(`${place} is not a ${form}.`);
  }
}

export function object(value: unknown, what: string): Record<string, unknown> {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw new WireError(`${what} is not an object.`);
  }
  return value as Record<string, unknown>;
}

/** The bytes of a buffer, copied so that typed arrays of any item size can start at their first byte. */
export function bytes(buffer: Buffer | undefined, what: string): ArrayBuffer {
  if (buffer === undefined) {
    throw new WireError(`${what}: a buffer is missing.`);
  }
  if (buffer instanceof ArrayBuffer) {
    return buffer;
  }
  const start = buffer.byteOffset;
  return buffer.buffer.slice(start, start + buffer.byteLength) as ArrayBuffer;
}

export function floats<T>(
  type: { new (data: ArrayBuffer): T; readonly BYTES_PER_ELEMENT: number },
  buffer: Buffer | undefined,
  count: number,
  what: string
): T {
  const data = bytes(buffer, what);
  if (data.byteLength !== count * type.BYTES_PER_ELEMENT) {
    throw new WireError(
      `${what}: ${data.byteLength} bytes where ${count * type.BYTES_PER_ELEMENT} are due.`
    );
  }
  return new type(data);
}

export function decodeText(buffer: Buffer | undefined, what: string): string {
  return new TextDecoder().decode(bytes(buffer, what));
}
